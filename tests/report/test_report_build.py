"""Reports of models: every noise level, several inputs and outputs, and the way back."""

import copy
import json
import re
from html import unescape
from pathlib import Path

import pytest
import torch
from report_data import line, metric
from torch import nn

import howsure as hs
from howsure import report
from howsure.methods import choose
from nets import TwoSensors

undrawn = pytest.mark.usefixtures("undrawn")


def small_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).eval()


def pairs(model, count=40, batch=16, noise=0.1):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 3, generator=generator)
    with torch.no_grad():
        y = model(x + noise * torch.randn(x.shape, generator=generator))
    return [(x[i : i + batch], y[i : i + batch]) for i in range(0, count, batch)]


def built(sure, loader, **options):
    chosen = report.Options(noise_levels=(0.5, 2), **options)
    return report.build(sure, loader, options=chosen, show_progress=False)


@undrawn
def test_every_level_is_the_method_at_that_noise():
    model = small_net()
    loader = pairs(model)
    found = built(hs.Uncertain(model, noise=hs.noise.std(0.1), method="gradients"), loader)
    assert found.levels == ("× 0.5", "× 1", "× 2") and found.start == 1
    target = torch.cat([y for _, y in loader])
    for k, std in enumerate((0.05, 0.1, 0.2)):
        p = hs.Uncertain(model, noise=hs.noise.std(std), method="gradients").predict(
            loader, show_progress=False
        )
        nll = float(hs.metrics.nll(p.mean, p.total_var, target))
        assert metric(found, "NLL", level=k).value == pytest.approx(nll, rel=1e-5)


@undrawn
def test_clean_inputs_get_the_noise_that_is_assumed():
    model = small_net()
    loader = pairs(model, count=200, noise=0.0)
    sure = hs.Uncertain(model, noise=hs.noise.std(0.3), method="linear")
    clean, noisy = built(sure, loader, inputs="clean"), built(sure, loader)
    errors = [[metric(f, "RMSE", level=k).value for k in range(3)] for f in (clean, noisy)]
    assert errors[0][0] < errors[0][1] < errors[0][2]
    assert errors[0][2] / errors[0][0] == pytest.approx(4, rel=0.2)
    assert max(errors[1]) < 1e-5
    assert "added to the inputs" in dict(clean.facts)["Noise levels"]
    assert "inputs stay as they are" in dict(noisy.facts)["Noise levels"]


@undrawn
def test_a_level_without_noise():
    model = small_net()
    sure = hs.Uncertain(model, noise=0.01, method="adf")
    options = report.Options(noise_levels=(0, 1))
    found = report.build(sure, pairs(model), options=options, show_progress=False)
    assert found.levels == ("× 0", "× 1") and found.start == 1
    assert metric(found, "NLL", level=0).value is None and metric(found, "NLL").value is not None
    report.to_html(found)


@undrawn
def test_nothing_of_the_user_is_changed():
    model = small_net()
    sure = hs.Uncertain(model, noise=hs.noise.std(0.1), method="sampled_adf", rate=0.1)
    setup, weights = sure.setup, copy.deepcopy(model.state_dict())
    built(sure, pairs(model))
    assert sure.setup is setup
    assert all(torch.equal(model.state_dict()[k], v) for k, v in weights.items())


def test_the_same_input_gives_the_same_page():
    model = small_net()
    sure = hs.Uncertain(model, noise=0.01, method="noise_sampling", rate=0.1)
    pages = [report.to_html(built(sure, pairs(model), inputs="clean")) for _ in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("method", ["gradients", "sampled_adf"])
def test_the_code_on_the_page_repeats_the_report(method, tmp_path, monkeypatch):
    model = small_net()
    loader = pairs(model)
    noise = hs.noise.per_channel(stds=[0.1, 0.2, 0.3], dim=1)
    tau = torch.tensor([0.01])
    sure = hs.Uncertain(model, noise, method, rate=0.05, placement="before", residual_var=tau)
    options = report.Options("Lift & 'drag'", names=["<drag>"], gallery=3, noise_levels=(0.5,))
    found = report.build(sure, loader, options=options, show_progress=False)
    monkeypatch.chdir(tmp_path)
    page = report.write("report.html", found).read_text(encoding="utf-8")
    Path("report.html").unlink()
    code = unescape(re.search(r'<pre id="code".*?<code>(.*?)</code>', page, re.DOTALL)[1])
    exec(code, {"model": model, "loader": loader})
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    settings = unescape(re.search(r'<pre id="settings".*?<code>(.*?)</code>', page, re.DOTALL)[1])
    assert json.loads(settings)["uncertain"]["method"] == method


@undrawn
def test_a_noise_of_the_users_own_is_left_to_the_user():
    model = small_net()
    sure = hs.Uncertain(model, noise=lambda x: 0.01 * x.square(), method="gradients")
    found = built(sure, pairs(model))
    assert found.state is None
    assert "fill in `sure`" in found.code
    report.to_html(found)


@pytest.mark.filterwarnings("ignore:The best rate")
def test_search_and_budget_are_shown_where_there_are_any(undrawn):
    model = small_net()
    loader = pairs(model)
    sure = hs.Uncertain(model, noise=hs.noise.std(0.1), method="gradients")
    sure.fit(loader, model="dropout", rates=[0.0, 0.001, 0.01, 0.1], show_progress=False)
    found = built(sure, loader)
    rates, nll = line(undrawn[found.search.svg], "NLL")
    assert tuple(nll) == sure.last_fit.nll
    assert list(rates) == sorted(rates)
    shares = {share.kind: share.share for share in found.budget}
    assert sum(share.share for share in found.budget) == pytest.approx(1)
    sensor = metric(found, "Variance from the sensor").value
    assert shares["input"] <= sensor + 1e-6
    page = report.to_html(found)
    assert '<section id="search">' in page and '<section id="budget">' in page
    plain = report.to_html(built(hs.Uncertain(model, noise=0.01, method="linear"), loader))
    assert '<section id="search">' not in plain and '<section id="budget">' not in plain


@undrawn
def test_a_model_without_sensor_noise_has_one_level():
    model = small_net()
    found = built(hs.Uncertain(model, method="mc_dropout", rate=0.1), pairs(model))
    assert found.levels == ("× 1",)
    page = report.to_html(found)
    assert 'type="range"' not in page and "chart-sweep" not in page
    assert "All of the variance comes from the network" in found.view.headline[-1]


class Pose(nn.Module):
    """Takes two sensors and returns one tensor in a dict."""

    def __init__(self):
        super().__init__()
        self.net = TwoSensors()

    def forward(self, image, motion):
        return {"first": self.net(image, motion)["pose"][0], "count": 3}


@undrawn
@pytest.mark.parametrize("form", [dict, tuple])
def test_several_inputs_and_an_output_in_a_dict(form):
    torch.manual_seed(0)
    model = Pose().eval()
    images, motion = torch.rand(12, 1, 8, 8), torch.randn(12, 6)
    noise = {"image": hs.noise.std(0.1), "motion": None}
    x = {"image": images, "motion": motion}
    if form is tuple:
        noise, x = tuple(noise.values()), tuple(x.values())
    sure = hs.Uncertain(model, noise=noise, method="adf")
    found = built(sure, [(x, torch.randn(12, 2))], inputs="clean")
    assert found.outputs == ("all outputs", "0", "1")
    assert metric(found, "RMSE").value > 0
    report.to_html(found)


@undrawn
def test_images_of_the_inputs_are_shown():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 5
    sure = hs.Uncertain(model, noise=0.01, method="adf", task="classification")
    found = built(sure, [(x, y)], names=list("abcde"), gallery=3)
    assert all(card.picture for gallery in found.galleries for card in gallery.cards)
    assert {row[1].text for row in found.cases.rows} <= set("abcde")


@undrawn
def test_auto_says_what_it_chose():
    model = small_net()
    loader = pairs(model)
    sure = hs.Uncertain(model, noise=0.01)
    found = built(sure, loader)
    chosen, _, notes = choose(sure.setup, loader[0][0])
    assert dict(found.facts)["Method"] == f"{chosen} (chosen by auto)"
    assert found.notes[: len(notes)] == notes


class FakeAudit:
    def to_dict(self):
        return AUDIT


AUDIT = {
    "verdict": ["Diagonal ADF is far too sure here.", "Use gradients."],
    "recommended": {"method": "gradients", "options": {}, "reason": "closest"},
    "samples": 2000,
    "skipped": [["linear", "too many outputs <b>"]],
    "rows": [
        {
            "label": "adf",
            "total": {"ratio": {"value": 0.1, "low": 0.09, "high": 0.11}},
            "data": None,
        },
        {"label": "gradients", "total": {"ratio": {"value": 1.0, "low": 0.9, "high": 1.1}}},
    ],
    "layers": [{"name": "<i>conv</i>", "ratio": 0.5, "departs": True}],
}


def test_an_audit_is_shown():
    model = small_net()
    sure = hs.Uncertain(model, noise=0.01, method="linear")
    options = {"options": report.Options(noise_levels=()), "show_progress": False}
    pages = [
        report.to_html(report.build(sure, pairs(model), audit=audit, **options))
        for audit in (AUDIT, FakeAudit())
    ]
    assert pages[0] == pages[1]
    text = re.search(r'<section id="audit">(.*?)</section>', pages[0], re.DOTALL)[1]
    assert "<p>Diagonal ADF is far too sure here.</p>" in text
    assert '<td class="number" data-value="0.1">0.100 (0.0900 to 0.110)</td>' in text
    assert "total, ratio" in text and "<td>yes</td>" in text
    assert "too many outputs &lt;b&gt;" in text and "&lt;i&gt;conv&lt;/i&gt;" in text
    assert '<button type="button">data</button>' not in text
    with pytest.raises(TypeError, match=r"give the result of `howsure.audit`"):
        report.build(sure, pairs(model), audit=3, show_progress=False)


def bad_targets(model):
    return [(x, y.repeat(1, 2)) for x, y in pairs(model)]


@undrawn
@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        (lambda m: [], {}, "loader is empty; there is nothing to report on"),
        (lambda m: [torch.zeros(2, 3)], {}, "must be a pair"),
        (bad_targets, {}, "targets have shape"),
        (lambda m: [(torch.full((2, 3), torch.nan), torch.zeros(2, 1))], {}, "NaN"),
        (pairs, {"names": ["one", "two"]}, "`names` has 2 names for 1 outputs"),
        (pairs, {"case_names": ["one"]}, "`case_names` has 1 names for 40 inputs"),
        (pairs, {"images": torch.zeros(3, 1, 8, 8)}, r"`images` has shape \(3, 1, 8, 8\); give 40"),
    ],
)
def test_one_clear_sentence(loader, options, message):
    model = small_net()
    sure = hs.Uncertain(model, noise=0.01, method="linear")
    with pytest.raises((ValueError, TypeError), match=message):
        built(sure, loader(model), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "both"}, '"noisy" or "clean"'),
        ({"noise_levels": (-1,)}, "holds -1; give multiples"),
        ({"noise_levels": (float("nan"),)}, "holds nan"),
        ({"cases": 0}, "`cases` must be a whole number"),
        ({"gallery": 1.5}, "`gallery` must be a whole number"),
        ({"names": "abc"}, "`names` is one string"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        report.Options(**options)
