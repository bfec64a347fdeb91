"""Figures of the quadrotor: the paths of the policies, and RMSE by regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from howsure_lab.experiments.figures import COLORS, STYLES, new_figure, save
from howsure_lab.experiments.quadrotor.policies import LABELS
from howsure_lab.experiments.quadrotor.regimes import MANEUVERS, REGIMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (
    *("nominal", "linear", "mlp", "hard_gate", "soft_blend"),
    *("posterior_blend", "ensemble_blend"),
)
_TICKS = (0.05, 0.1, 0.2, 0.5, 1.0)
_PATHS = ("normal", "heading", "input_fault")


def draw_figures(seeds: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes paths.png (first seed) and regimes.png (mean and spread of all)."""
    save(paths_figure(seeds[0]["paths"]), folder / "paths.png")
    save(regimes_figure([line for seed in seeds for line in seed["lines"]]), folder / "regimes.png")


def paths_figure(paths: Mapping[str, Any]) -> Figure:
    """A row per maneuver, a column per regime; the reference in gray."""
    figure, axes = new_figure(len(MANEUVERS), len(_PATHS), width=12, height=7.5)
    for row, maneuver in zip(axes, MANEUVERS, strict=True):
        for ax, regime in zip(row, _PATHS, strict=True):
            found = paths[f"{regime} {maneuver}"]
            ax.plot(*np.array(found["reference"]).T, color="0.8", linewidth=6, label="reference")
            for policy in ("nominal", "mlp", "hard_gate", "posterior_blend"):
                ax.plot(*np.array(found[policy]["path"]).T, **_style(policy))
            ax.set_title(f"{maneuver}, {regime.replace('_', ' ')}")
            ax.set_aspect("equal", adjustable="datalim")
            ax.set(xlabel="x, m", ylabel="y, m")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def regimes_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """RMSE of every policy in every regime; a bar is the spread over seeds."""
    figure, axes = new_figure(1, len(MANEUVERS), width=12, height=4.5)
    for ax, maneuver in zip(axes[0], MANEUVERS, strict=True):
        for place, policy in enumerate(SHOWN):
            own = [line["rmse"] for line in lines if line["policy"] == policy]
            cells = [[rmse[f"{regime} {maneuver}"] for rmse in own] for regime in REGIMES]
            values = np.array(cells, dtype=float)  # a crash is null in JSON, and here not a number
            at = np.arange(len(REGIMES)) + (place - (len(SHOWN) - 1) / 2) * 0.12
            mark = {"marker": "osD^vPX"[place], "color": COLORS[place], "linestyle": "none"}
            spread = values.std(1, ddof=1) if values.shape[1] > 1 else None
            ax.errorbar(at, values.mean(1), spread, capsize=2, label=LABELS[policy], **mark)
        ax.set_xticks(range(len(REGIMES)), [name.replace("_", "\n") for name in REGIMES])
        ax.set(title=maneuver, ylabel="RMSE, m", yscale="log")
        ax.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        ax.minorticks_off()
        ax.grid(axis="y", which="both", alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _style(policy: str) -> dict[str, object]:
    place = SHOWN.index(policy)
    return {
        "color": COLORS[place],
        "linestyle": STYLES[place % len(STYLES)],
        "linewidth": 1.3,
        "label": LABELS[policy],
    }
