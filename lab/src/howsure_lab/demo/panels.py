"""Two panels: predicted stds beside true errors, and the coverage of the intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from howsure.plots.theme import LIGHT
from howsure_lab.demo.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVELS = torch.linspace(0.02, 0.98, 49, dtype=torch.float64)


def draw_stds(ax: Axes, study: Study) -> Axes:
    """A box of the predicted stds for each condition, with its RMSE as a diamond."""
    for row, outcome in enumerate(study.outcomes):
        mark = LIGHT.mark(row)
        box = {"facecolor": mark.colour, "hatch": mark.hatch, "alpha": 0.75}
        ax.boxplot(
            outcome.std.numpy(),
            positions=[row],
            orientation="horizontal",
            widths=0.55,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops=box,
            medianprops={"color": "black", "linewidth": 1.6},
        )
        ax.plot(outcome.rmse, row, marker="D", markersize=8, color="white", markeredgecolor="black")
    names = [outcome.name for outcome in study.outcomes]
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0, None), ylim=(len(names) - 0.5, -0.5), xlabel="angle in radians")
    ax.set_title(f"Std by {study.method} (box), RMSE (◇)", weight="bold", fontsize=11)
    return _quiet(ax)


def draw_coverage(ax: Axes, study: Study) -> Axes:
    """The share of true angles in the central interval, against its level."""
    ax.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=(0, (2, 2)))
    reach = 2**0.5 * torch.erfinv(_LEVELS)
    for row, outcome in enumerate(study.outcomes):
        mark = LIGHT.mark(row)
        errors = ((outcome.true - outcome.mean).abs() / outcome.std).double()
        inside = (errors.unsqueeze(1) <= reach).double().mean(0)
        look = {"color": mark.colour, "linestyle": mark.line, "marker": mark.marker}
        ax.plot(_LEVELS, inside, **look, markevery=(3 + row, 9), label=outcome.name)
    ax.text(0.97, 0.04, "below the diagonal: too sure", ha="right", fontsize=9.5)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval")
    ax.set_ylabel("empirical coverage")
    ax.set_title("Coverage of the intervals", weight="bold", fontsize=11)
    ax.legend(frameon=False, loc="upper left", fontsize=9, handlelength=3.2)
    return _quiet(ax)


def _quiet(ax: Axes) -> Axes:
    ax.grid(color="0.9")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
