"""Tables and figures of the steering run, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure_lab.experiments.contenders import LABELS
from howsure_lab.experiments.figures import (
    Panel,
    coverage_panel,
    draw_calibration,
    draw_dots,
    draw_sparsification,
    new_figure,
    save,
)
from howsure_lab.experiments.steering.data import SteeringData
from howsure_lab.experiments.tables import READING, REGRESSION, Column, method_table

PAPER = {
    "gal": ".09 / .83 / -.72",
    "gast": ".10 / .79 / -.89",
    "kendall": ".11 / .75 / -1.1",
    "ours": ".09 / .81 / -1.0",
}
_SHOWN = 6  # images of the gallery per row
# One line per kind of method: more cannot be told apart in a figure.
_CURVES = ("gal", "gast", "kendall", "ours", "noise_sampling", "gradients", "ensemble_gradients")
_CONDITION = (
    Column("rmse", "RMSE"),
    Column("std", "mean std"),
    Column("nll", "NLL", 2),
    Column("coverage", "coverage 95 %", 2),
    Column("ood_auroc", "AUROC", 2),
)


def tables(results: Mapping[str, Any]) -> list[str]:
    """The page's parts: the main table, one per held-out condition, and how to read them."""
    lines = results["lines"]
    tests = list(lines[0]["scores"])
    parts = [f"### {_title(tests[0])}\n", _table(lines, tests[0], REGRESSION, PAPER)]
    parts.append(f"{READING} The paper's column: RMSE / EVA / NLL on Udacity.\n")
    for test in tests[1:]:
        parts += [f"### {_title(test)}\n", _table(lines, test, _CONDITION, None)]
    if tests[1:]:
        parts.append(
            "AUROC: how well the predicted std distinguishes this condition from the first.\n"
        )
    plain = "; ".join(
        f"{_title(test)}: RMSE {found['rmse']:.4f}, EVA {found['eva']:.3f}, {found['count']} images"
        for test, found in results["plain"].items()
    )
    return [*parts, f"The plain network. {plain}.\n"]


def _title(test: str) -> str:
    return test.replace("_", " ").capitalize()


def _table(
    lines: Sequence[Mapping[str, Any]],
    test: str,
    columns: Sequence[Column],
    paper: Mapping[str, str] | None,
) -> str:
    runs: dict[str, list[Any]] = {}
    for line in lines:
        runs.setdefault(line["method"], []).append(line["scores"][test])
    return method_table(runs, columns, labels=LABELS, paper=paper)


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL and coverage under every condition, by method."""
    lines = results["lines"]
    tests = list(lines[0]["scores"])
    nll = [Panel(_title(test), "NLL", _values(lines, test, "nll")) for test in tests]
    coverage = [coverage_panel(_title(test), _values(lines, test, "coverage")) for test in tests]
    if len(tests) > 1:
        return draw_dots([*nll, *coverage], path)
    rank = _values(lines, tests[0], "rank")
    ranked = Panel(_title(tests[0]), "rank correlation of std and error", rank, 0.0, False)
    return draw_dots([*nll, *coverage, ranked], path)


def _values(lines: Sequence[Mapping[str, Any]], test: str, key: str) -> dict[str, list[float]]:
    """A metric of every method, one value for each seed."""
    found: dict[str, list[float]] = {}
    for line in lines:
        found.setdefault(line["method"], []).append(line["scores"][test][key])
    return found


def draw_figures(lines: Sequence[Mapping[str, Any]], data: SteeringData, folder: Path) -> None:
    """Writes curves.png and gallery.png from the first seed's predictions."""
    first = [line for line in lines if line["seed"] == lines[0]["seed"]]
    test = next(iter(data.tests))
    target = data.tests[test].y
    found = {}
    for line in (line for line in first if line["method"] in _CURVES):
        mean, var = _predictions(line, test)
        found[LABELS[line["method"]]] = ((target - mean).abs(), var)
    figure, axes = new_figure(1, 2, width=11, height=4.5)
    draw_sparsification(axes[0, 0], found).set_title("What is gained by leaving out the least sure")
    draw_calibration(axes[0, 1], found).set_title("Are intervals as wide as they should be?")
    save(figure, folder / "curves.png")
    _draw_gallery(first, data, folder / "gallery.png")


def _predictions(line: Mapping[str, Any], test: str) -> tuple[Tensor, Tensor]:
    kept = line["predictions"][test]
    return torch.tensor(kept["mean"]).unsqueeze(1), torch.tensor(kept["var"]).unsqueeze(1)


def _draw_gallery(lines: Sequence[Mapping[str, Any]], data: SteeringData, path: Path) -> None:
    """A row per condition: what the camera sees, the angle, and howsure's prediction ± std."""
    by_method = {line["method"]: line for line in lines}
    line = next(by_method[name] for name in ("gradients", "ours", *by_method) if name in by_method)
    figure, axes = new_figure(len(data.tests), _SHOWN, width=12, height=2.5 * len(data.tests))
    for row, (test, pairs) in zip(axes, data.tests.items(), strict=True):
        mean, var = _predictions(line, test)
        # From the surest to the least sure, evenly.
        order = var.flatten().argsort()
        chosen = order[torch.linspace(0, len(order) - 1, len(row)).long()].tolist()
        row[0].set_ylabel(_title(test), weight="bold")
        for ax, i in zip(row, chosen, strict=True):
            ax.imshow(pairs.x[i, 0].clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"{float(mean[i]):+.2f} ± {float(var[i]) ** 0.5:.2f}", fontsize=10)
            ax.set_xlabel(f"driver {float(pairs.y[i]):+.2f}", fontsize=9)
    label = LABELS[line["method"]]
    figure.suptitle(f"Predicted angle ± std ({label}), from the surest to the least sure")
    save(figure, path)
