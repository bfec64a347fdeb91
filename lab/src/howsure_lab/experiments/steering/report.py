"""Tables and figures of the steering run, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure import plots
from howsure_lab.experiments.contenders import LABELS
from howsure_lab.experiments.figures import Panel, coverage_panel, draw_dots, new_figure, save
from howsure_lab.experiments.steering.data import SteeringData
from howsure_lab.experiments.tables import READING, REGRESSION, Column, by_method, method_table

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
    parts = []
    for test in tests:
        runs = by_method(lines, lambda line, test=test: line["scores"][test])
        first = test == tests[0]
        columns, paper = (REGRESSION, PAPER) if first else (_CONDITION, None)
        table = method_table(runs, columns, labels=LABELS, paper=paper)
        parts += [f"### {_title(test)}\n", table]
        if first:
            parts.append(f"{READING} The paper's column: RMSE / EVA / NLL on Udacity.\n")
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


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL and coverage under every condition, by method."""
    lines = results["lines"]
    tests = list(lines[0]["scores"])

    def values(test: str, key: str) -> dict[str, list[float]]:
        return by_method(lines, lambda line: line["scores"][test][key])

    panels = [Panel(_title(test), "NLL", values(test, "nll")) for test in tests]
    panels += [coverage_panel(_title(test), values(test, "coverage")) for test in tests]
    if len(tests) == 1:
        ranks = values(tests[0], "rank"), 0.0, False
        panels.append(Panel(_title(tests[0]), "rank correlation of std and error", *ranks))
    return draw_dots(panels, path)


def draw_figures(lines: Sequence[Mapping[str, Any]], data: SteeringData, folder: Path) -> None:
    """Writes curves.png and gallery.png from the first seed's predictions."""
    first = [line for line in lines if line["seed"] == lines[0]["seed"]]
    test, pairs = next(iter(data.tests.items()))
    shown = {
        LABELS[line["method"]]: _predictions(line, test)
        for line in first
        if line["method"] in _CURVES
    }
    figure, axes = new_figure(1, 2, width=11, height=4.5)
    left, right = axes[0]
    if shown:
        errors = {name: (pairs.y - mean).abs() for name, (mean, _) in shown.items()}
        variances = {name: var for name, (_, var) in shown.items()}
        plots.sparsification(errors, variances, ax=left)
        plots.reliability(shown, pairs.y, ax=right)
    left.set_title("What is gained by leaving out the least sure")
    right.set_title("Are predicted quantiles where they should be?")
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
