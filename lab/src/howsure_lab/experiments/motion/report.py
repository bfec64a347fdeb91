"""Tables of the motion run, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from howsure_lab.experiments import contenders
from howsure_lab.experiments.dots import Panel, covered, draw_dots
from howsure_lab.experiments.motion import calibrated
from howsure_lab.experiments.motion.dense import dense_table
from howsure_lab.experiments.motion.scores import MOTION
from howsure_lab.experiments.tables import Column, method_table

LABELS = {
    calibrated.FLOOR_NAME: calibrated.FLOOR_LABEL,
    **contenders.LABELS,
    calibrated.NAME: calibrated.LABEL,
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
    size = " x ".join(str(side) for side in settings["shape"])
    about = _REAL.format(source=results["flow"]) if results.get("flow") else _RENDERED
    old = any(line["method"] == "probes" for line in results["dense"])
    parts = [_table(lines, MOTION), _reading(lines, size, first, second, old=old), about]
    parts += ["### Kind by kind\n", _kinds_table(lines, kinds)]
    parts += ["### Dense outputs\n", dense_table(results["dense"])]
    return [*parts, _DENSE.format(passes=settings["passes"], probes=_PROBES if old else "")]


def _reading(
    lines: Sequence[Mapping[str, Any]], size: str, first: str, second: str, *, old: bool
) -> str:
    """How to read the main table; what it says depends on the lines that there are."""
    methods = {line["method"] for line in lines}
    text = _READING.format(size=size, first=first, second=second)
    if "gradients" not in methods:
        text += _LEFT_OUT.format(label=LABELS["adjoint" if old else "gradients"])
    return text + (_OWN if calibrated.NAME in methods else "")


def _table(lines: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    runs: dict[str, list[Any]] = {}
    for line in lines:
        runs.setdefault(line["method"], []).append(line["scores"]["all"])
    return method_table(runs, columns, labels=LABELS, paper=PAPER)


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL, coverage, rank and AUROC, by method."""
    first, second, *_ = results["lines"][0]["scores"]["kinds"]
    values: dict[str, dict[str, list[float]]] = {}
    for line in results["lines"]:
        for key, value in line["scores"]["all"].items():
            values.setdefault(key, {}).setdefault(line["method"], []).append(value)
    panels = [
        Panel("Likelihood", "NLL", values["nll"]),
        covered("Intervals", values["coverage"]),
        Panel("Ranking", "rank correlation of std and error", values["rank"], 0.0, False),
        Panel("Kinds", f"AUROC, {second}\nfrom {first}", values["auroc"], 0.5, False),
    ]
    return draw_dots(panels, path, LABELS)


def _kinds_table(lines: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> str:
    runs: dict[str, list[Any]] = {}
    for line in lines:
        found = line["scores"]["kinds"]
        cells = {f"{key} {kind}": found[kind].get(key) for kind in kinds for key in _BY_KIND}
        runs.setdefault(line["method"], []).append(cells)
    columns = [
        Column(f"{key} {kind}", f"{name}, {kind}", 2)
        for kind in kinds
        for key, name in _BY_KIND.items()
        if key != "auroc" or kind not in kinds[:2]
    ]
    return method_table(runs, columns, labels=LABELS)


_BY_KIND = {"nll": "NLL", "std": "std", "auroc": "AUROC"}
