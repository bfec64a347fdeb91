"""What a motion run reports: scores on objects, whole fields, tables and figures.

A backward pass for every output, as "gradients" needs, is out of reach for a field. What remains is
sampling with the paired split of data and model variance, and the paper's diagonal propagation
(with sampled masks for dropout). The judge is Monte Carlo with many more samples. Compared are the
standard deviations of all cells that an object covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from howsure import metrics
from howsure.methods import MethodName
from howsure.noise import NoiseLike
from howsure.prediction import Prediction
from howsure.uncertain import Uncertain
from howsure_lab.experiments import contenders
from howsure_lab.experiments.figures import Panel, coverage_panel, draw_dots, new_figure, save
from howsure_lab.experiments.motion.data import ObjectPairs, covered
from howsure_lab.experiments.motion.model import STRIDE
from howsure_lab.experiments.tables import (
    FLOOR,
    Column,
    by_method,
    cells,
    is_constant,
    markdown,
    method_table,
    rank_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.quiver import Quiver


# Added to all fitted variances, in pixels**2: the flow of an object that only shifts has none.
_SPREAD = 0.1**2

MOTION = (
    Column("epe", "EPE", 2),
    Column("kl", "KL", 1),
    Column("nll", "NLL", 2),
    Column("rank", "rank", 2),
    Column("coverage", "coverage 95 %", 2),
    Column("std", "mean std", 2),
    Column("auroc", "AUROC", 2),
)


def object_scores(
    mean: Tensor,  # (objects, 2, points, 1)
    var: Tensor,  # likewise
    target: Tensor,  # likewise
) -> dict[str, float]:
    """All metrics of predicted flows with total variance `var`, in pixels."""
    return {
        "epe": float(metrics.epe(mean, target)),
        "kl": float(fitted_kl(mean, target).mean()),
        "nll": float(metrics.nll(mean, var, target, floor=FLOOR, include_constant=True)),
        "nll_without_constant": float(metrics.nll(mean, var, target, floor=FLOOR)),
        "rank": rank_of(object_variance(var), (target - mean).norm(dim=1).mean((1, 2))),
        "coverage": float(metrics.coverage(mean, var, target, level=0.95)),
        "std": float(var.sqrt().mean()),
        "count": len(target),
    }


def fitted_kl(mean: Tensor, target: Tensor) -> Tensor:  # (objects,)
    """KL(true || predicted) of Gaussians fitted to each object's flow vectors, in nats.

    The paper states neither the direction, nor the form of the covariance, nor what it does with
    objects that only shift; here the covariance is full and has (0.1 pixels)**2 added.
    """
    true, predicted = (_fitted(flow.double()) for flow in (target, mean))
    return kl_divergence(true, predicted)


def _fitted(flow: Tensor) -> MultivariateNormal:
    vectors = flow.flatten(2).transpose(1, 2)  # (objects, points, 2)
    center = vectors.mean(1, keepdim=True)
    covariance = (vectors - center).transpose(1, 2) @ (vectors - center) / vectors.shape[1]
    spread = _SPREAD * torch.eye(2, dtype=flow.dtype)
    return MultivariateNormal(center.squeeze(1), covariance + spread)


def object_variance(var: Tensor) -> Tensor:  # (objects,)
    """The mean predicted variance on each object."""
    return var.flatten(1).mean(1)


def told_apart(variances: Mapping[str, Tensor]) -> dict[str, float]:
    """AUROC of each kind of objects against the first, by their mean predicted variance."""
    inside, *others = map(object_variance, variances.values())
    return {
        kind: 0.5
        if is_constant(torch.cat([inside, outside]))
        else float(metrics.out_of_distribution_auroc(inside, outside))
        for kind, outside in zip(list(variances)[1:], others, strict=True)
    }


_SAMPLES = 20
_LABELS = {
    "sampling": f"sampling, {_SAMPLES} passes, paired split",
    "diagonal": f"diagonal ADF (the paper), {_SAMPLES} masks",
    "probes": "32 probes, one pass",  # of version 0.1, which older results contain
}
_PARTS = {"data": "sensor noise", "model": "dropout", "total": "both"}


@dataclass(frozen=True, eq=False)
class Field:
    """A network that predicts fields, with its noise."""

    model: nn.Module
    noise: NoiseLike  # variance of its input
    rate: float  # of dropout
    seed: int = 0  # of all draws

    def predicted(self, x: Tensor, method: MethodName, **options: object) -> Prediction:
        """The whole field by a method."""
        # Masks for each object of its own: one draw for all would make one error for all.
        chosen = {"noise": self.noise, "rate": self.rate, "seed": self.seed, "shared_masks": False}
        chosen |= options
        return Uncertain(self.model, method=method, **chosen)(x)


def compared(field: Field, pairs: ObjectPairs, passes: int) -> list[dict[str, object]]:
    """One line per method and part of the variance, against Monte Carlo with `passes` passes."""
    truth = _parts(field.predicted(pairs.x, "noise_sampling", samples=passes, seed=field.seed + 1))
    found = {
        "sampling": _parts(field.predicted(pairs.x, "noise_sampling", samples=_SAMPLES)),
        "diagonal": _parts(field.predicted(pairs.x, "sampled_adf", samples=_SAMPLES)),
    }
    inside = covered(pairs.y[:, 2]).unsqueeze(1).expand_as(pairs.y[:, :2])
    return [
        {"method": method, "part": part, **_agreement(variances[part][inside], truth[part][inside])}
        for part in _PARTS
        for method, variances in found.items()
    ]


def _parts(prediction: Prediction) -> dict[str, Tensor]:
    data, model = prediction.data_var, prediction.model_var
    return {"data": data, "model": model, "total": data + model}


def _agreement(var: Tensor, truth: Tensor) -> dict[str, float]:
    """Ratio of std (the median), typical factor by which a std is off, and rank correlation."""
    floor = torch.finfo(truth.dtype).tiny  # protects the logarithm where a split is cut at 0
    ratio = (var.clamp(min=floor) / truth.clamp(min=floor)).sqrt()
    off = torch.exp(ratio.log().abs().median())
    rank = float(metrics.rank_correlation(var, truth))
    return {"ratio": float(ratio.median()), "off": float(off), "rank": rank}


def dense_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The comparison as Markdown."""
    columns = (
        Column("ratio", "std / true std"),
        Column("off", "off by factor", 2),
        Column("rank", "rank", 2),
    )
    rows = [
        [_PARTS[line["part"]], _LABELS[line["method"]], *cells([line], columns)] for line in lines
    ]
    return markdown(["variance from", "method", *(each.heading for each in columns)], rows)


# Two more lines than in the paper.
AFFINE, EACH = "ours_affine", "constant_each"
LABELS = {
    EACH: "constant variance of each component",
    **contenders.LABELS,
    AFFINE: "the paper + affine variance",
}
PAPER = {
    "gal": "5.99 / 56.7 / 6.96",
    "gast": "6.12 / 50.1 / 5.74",
    "kendall": "6.79 / 52.5 / 5.28",
    "ours": "5.91 / 45.1 / 4.07",
}
_READING = """\
Flow in pixels of the network's input ({size}), at 16 points of each object. EPE: mean length of the
error. KL: of Gaussians fitted to each object's true and predicted flow vectors, mean over objects;
the paper does not say how it treats objects that only shift, so compare within the table. NLL is
per component and includes 1/2 log 2 pi. rank: Spearman correlation, over objects, of predicted
variance and error. AUROC: how well the mean predicted variance on the object distinguishes
{second} objects from {first} ones. The paper's column: EPE / KL / NLL on DAVIS 2016.
"""
_LEFT_OUT = """\
`{label}` is left out: it needs a backward pass for each component of the flow.
"""
_OWN = """\
The last line is howsure's own: the paper's method, whose variance becomes
residual_var + scale * var, fitted on held-out data.
"""
_RENDERED = """\
In training one object in twenty is unpredictable; of those that tune and test the methods, half
are. An unpredictable object is a star that moves fast and bends, so the input shows what kind it
is, though not where it goes; a hidden one looks like a predictable one and turns at the last
moment. Sensor noise and dropout can only tell what the input shows: for hidden objects the AUROC
has to be about 0.5. By the same reason the paper's method has no term for a future that the input
does not contain: its rate has to stand in for it, and spoils the mean. Gal's residual variance and
Kendall's head have such a term; residual_var or an affine variance gives it to the paper's method.
"""
_REAL = """\
Every seed has other videos for training, tuning and testing; no video is on two sides. The network
is trained on rendered scenes first. The true flow is {source}. Steady and changing: objects
whose mean flow changed by less or more than the median from the last frame to the next.
"""
_DENSE = """\
The whole field at once, on the cells that objects cover, against Monte Carlo with {passes} passes.
std / true std: the median ratio. off by factor: the typical error of a std, in either direction.
Propagation without correlations misses most of what the sensor's noise does; where dropout causes
nearly all variance, as here, that does not show in the total.{probes}
"""
_PROBES = " Probes see it in one pass."  # a method of version 0.1


def tables(results: Mapping[str, Any]) -> list[str]:
    """The page's parts: the main table, a table per kind, the dense methods, how to read them."""
    lines, settings = results["lines"], results["settings"]
    first, second, *_ = kinds = list(lines[0]["scores"]["kinds"])
    runs = by_method(lines, lambda line: line["scores"]["all"])
    old = any(line["method"] == "probes" for line in results["dense"])
    size = " x ".join(str(side) for side in settings["shape"])
    reading = _READING.format(size=size, first=first, second=second)
    if "gradients" not in runs:
        reading += _LEFT_OUT.format(label=LABELS["adjoint" if old else "gradients"])
    return [
        method_table(runs, MOTION, labels=LABELS, paper=PAPER),
        reading + (_OWN if AFFINE in runs else ""),
        _REAL.format(source=results["flow"]) if results.get("flow") else _RENDERED,
        "### Kind by kind\n",
        _kinds_table(lines, kinds),
        "### Dense outputs\n",
        dense_table(results["dense"]),
        _DENSE.format(passes=settings["passes"], probes=_PROBES if old else ""),
    ]


_BY_KIND = {"nll": "NLL", "std": "std", "auroc": "AUROC"}


def _kinds_table(lines: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> str:
    def flat(line: Mapping[str, Any]) -> dict[str, float]:
        found = line["scores"]["kinds"]
        return {f"{key} {kind}": found[kind].get(key) for kind in kinds for key in _BY_KIND}

    columns = [
        Column(f"{key} {kind}", f"{name}, {kind}", 2)
        for kind in kinds
        for key, name in _BY_KIND.items()
        if key != "auroc" or kind not in kinds[:2]
    ]
    return method_table(by_method(lines, flat), columns, labels=LABELS)


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL, coverage, rank and AUROC, by method."""
    first, second, *_ = results["lines"][0]["scores"]["kinds"]

    def values(key: str) -> dict[str, list[float]]:
        return by_method(results["lines"], lambda line: line["scores"]["all"][key])

    panels = [
        Panel("Likelihood", "NLL", values("nll")),
        coverage_panel("Intervals", values("coverage")),
        Panel("Ranking", "rank correlation of std and error", values("rank"), 0.0, False),
        Panel("Kinds", f"AUROC, {second}\nfrom {first}", values("auroc"), 0.5, False),
    ]
    return draw_dots(panels, path, LABELS)


_SHOWN = 3  # objects per row


def draw_arrows(field: Field, tests: Mapping[str, ObjectPairs], path: Path) -> Path:
    """Writes a picture with a row for each of the two main kinds; a common scale of colors.

    Its objects are evenly spread over all; none is picked by its looks.
    """
    kinds = list(tests)[:2]
    pairs = [tests[kind].every(_SHOWN) for kind in kinds]
    found = [field.predicted(few.x, "sampled_adf") for few in pairs]
    stds = [p.total_var.sum(1).sqrt() for p in found]  # of an arrow's end point
    insides = [covered(few.y[:, 2]) for few in pairs]
    most = max(float(std[inside].max()) for std, inside in zip(stds, insides, strict=True))
    # Flow of less than a cell could not be seen.
    longest = max(float(few.target.norm(dim=1).max()) for few in pairs)
    times = max(1, round(2 * STRIDE / max(longest, 1e-3)))
    height, width = pairs[0].x.shape[-2:]
    figure, axes = new_figure(2, _SHOWN, width=11, height=1 + 5.6 * height / width)
    rows = zip(axes, kinds, pairs, found, stds, insides, strict=True)
    for row, kind, few, p, std, inside in rows:
        row[0].set_ylabel(kind, fontsize=12)
        for i, ax in enumerate(row[: len(std)]):
            ax.imshow(few.x[i, 0].clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, alpha=0.5)
            ax.set(xticks=[], yticks=[])
            _quiver(ax, times * few.y[i, :2], inside[i], color="#D55E00", width=0.004)
            shown = std[i][inside[i]]
            ax.set_title(f"mean std {float(shown.mean()):.2f} pixels", fontsize=10)
            look = {"cmap": "viridis", "width": 0.011}
            drawn = _quiver(ax, times * p.mean[i], inside[i], shown.numpy(), **look)
            drawn.set_clim(0, most)
            if i == 0:
                figure.colorbar(drawn, ax=list(row), label="std (pixels)", shrink=0.9)
    length = "" if times == 1 else f"; arrows {times} times as long"
    how = f"sampled ADF, dropout {field.rate:g}"
    figure.suptitle(f"Predicted future flow, colored by its std ({how}); thin: what came{length}")
    return save(figure, path)


def _quiver(ax: Axes, flow: Tensor, inside: Tensor, *colors: np.ndarray, **look: Any) -> Quiver:
    """Arrows of a field's cells on its image, in the length that they have."""
    down, right = torch.where(inside)
    place = [(STRIDE * cells + (STRIDE - 1) / 2).numpy() for cells in (right, down)]
    ends = [component[inside].numpy() for component in flow]
    return ax.quiver(*place, *ends, *colors, angles="xy", scale_units="xy", scale=1.0, **look)
