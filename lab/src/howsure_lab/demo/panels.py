"""Two panels below the roads: whether the intervals hold, and whether the novelty warns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsure_lab.demo.road import ORANGE, VERMILLION
from howsure_lab.demo.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRAY = "0.72"
_WIDTH = 0.3
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100)


def draw_coverage(ax: Axes, study: Study) -> Axes:
    """How many true angles lie in the 95 % interval, beside those of one std for all roads."""
    for column, outcome in enumerate(study.outcomes):
        shares = (outcome.coverage_of_one_std(study.one_std), outcome.coverage)
        for side, share, color in zip((-0.5, 0.5), shares, (_GRAY, ORANGE), strict=True):
            place = column + side * _WIDTH
            ax.bar(place, 100 * share, _WIDTH, color=color, edgecolor="black", linewidth=0.8)
            ax.text(place, 100 * share + 5, f"{100 * share:.0f}", ha="center", bbox=_PAPER)
    ax.axhline(95, color="black", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    ax.set(ylim=(0, 119), yticks=(0, 50, 95), ylabel="%")
    ax.set_title(
        "Intervals: true angles inside the 95 % interval, by howsure (orange) and by one std for "
        "all (gray)",
        **_TITLE,
    )
    return _below_roads(ax, len(study.outcomes))


def draw_novelty(ax: Axes, study: Study) -> Axes:
    """The novelty of the roads of each condition, and how many the gate rejects."""
    limit = float(study.gate.threshold)
    for column, outcome in enumerate(study.outcomes):
        warned = outcome.rejected(study.gate)
        ax.boxplot(
            outcome.novelties.numpy(),
            positions=[column],
            widths=2 * _WIDTH,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": VERMILLION if warned > 0.5 else ORANGE, "alpha": 0.75},
            medianprops={"color": "black", "linewidth": 1.6},
        )
        note = f"warns of {100 * warned:.0f} %"
        ax.annotate(note, (column, 0.97), xycoords=("data", "axes fraction"), ha="center", va="top")
    ax.axhline(limit, color="black", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    ax.set(ylim=(low, high * (high / low) ** 0.25), ylabel="novelty")
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_title(
        "Novelty warns: roads above the line are newer than 95 % of the known ones", **_TITLE
    )
    return _below_roads(ax, len(study.outcomes))


_TITLE = {"weight": "bold", "fontsize": 11, "loc": "left"}


def _below_roads(ax: Axes, columns: int) -> Axes:
    """The axes with one place below each column of roads."""
    ax.set(xlim=(-0.5, columns - 0.5), xticks=[])
    ax.spines[["top", "right"]].set_visible(False)
    return ax
