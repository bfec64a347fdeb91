"""Small predictions with known faults, and a page made of them."""

from dataclasses import replace

import torch

from howsure import Prediction, report

HOSTILE = "</script><script>document.title='broken'</script>\"'&\u2028é漢🙂"


def gaussian_data(count=400, outputs=1, scale=1.0, seed=0):
    """Targets around the mean with stds that differ; `scale` is predicted std / true std."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, outputs, generator=generator, dtype=torch.float64)
    std = torch.exp(0.7 * torch.randn(count, outputs, generator=generator, dtype=torch.float64))
    target = mean + std * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    var = (scale * std).square()
    return Prediction(mean, 0.75 * var, 0.25 * var), target


def class_data(count=400, classes=4, seed=0):
    """Probabilities that hold: labels are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    mean = logits.softmax(1)
    target = torch.multinomial(mean, 1, generator=generator).squeeze(1)
    var = 0.1 * mean * (1 - mean)
    return Prediction(mean, 0.5 * var, 0.5 * var, expected_entropy=mean[:, 0]), target


def regression_report(outputs=2, **options):
    """Three noise levels, of which the middle one is right."""
    levels = {k: gaussian_data(120, outputs, k)[0] for k in (0.5, 1.0, 2.0)}
    target = gaussian_data(120, outputs)[1]
    return report.from_predictions(levels, target, options=report.Options(**options))


def class_report(**options):
    prediction, target = class_data(120)
    images = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    chosen = report.Options(images=images, **options)
    other, _ = class_data(120, seed=1)
    levels = {0.5: other, 1.0: prediction}
    return report.from_predictions(levels, target, task="classification", options=chosen)


def hostile_report():
    """Every name and text from outside is an attempt to break out."""
    names = {"names": [HOSTILE, "b"], "case_names": [HOSTILE] * 120, "title": HOSTILE}
    found = regression_report(**names)
    audit = {"verdict": HOSTILE, "rows": [{HOSTILE: HOSTILE}], "skipped": [[HOSTILE, HOSTILE]]}
    facts = ((HOSTILE, HOSTILE),)
    return replace(
        found, audit=audit, notes=(HOSTILE,), facts=facts, settings={HOSTILE: HOSTILE}, code=HOSTILE
    )


def metric(found, name, level=None, output=0):
    """The metric whose name begins so."""
    view = found.views[found.start if level is None else level][output]
    return next(m for m in view.metrics if m.name.replace("\u00a0", " ").startswith(name))


def chart(found, key, level=None, output=0):
    view = found.views[found.start if level is None else level][output]
    return next(c for c in view.charts if c.key == key)


def line(ax, name):
    """The line whose label begins so, as (x, y)."""
    return next(each.get_data() for each in ax.lines if str(each.get_label()).startswith(name))
