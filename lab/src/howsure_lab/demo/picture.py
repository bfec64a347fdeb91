"""The demonstration's picture: roads with predicted angles, and below them what is true of all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from howsure.files import write_atomically
from howsure_lab.demo.study import Outcome, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec


# From the palette of Okabe and Ito, which readers with any color vision can tell apart.
ORANGE, VERMILLION = "#E69F00", "#D55E00"
_REACH = 1.96  # stds: 95 %
_LENGTH = 0.72  # of the lines, as a share of the image height


def draw_road(ax: Axes, outcome: Outcome, i: int) -> Axes:
    """What the camera reads, and the angles, seen from the car: up is straight ahead."""
    from matplotlib.patches import Wedge

    image = outcome.pairs.x[i, 0].clamp(0, 1).numpy()
    mean, std, true = (float(values[i]) for values in (outcome.mean, outcome.std, outcome.true))
    side = image.shape[0]
    ax.imshow(image, cmap="gray", vmin=0, vmax=1, extent=(-side / 2, side / 2, 0, side))
    # Angles are measured from straight ahead to the right, matplotlib's from the right to the left.
    center, half = 90 - math.degrees(mean), math.degrees(_REACH * std)
    wedge = (0, 0), _LENGTH * side, center - half, center + half
    ax.add_patch(Wedge(*wedge, facecolor=ORANGE, alpha=0.4))
    ax.add_patch(Wedge(*wedge, facecolor="none", edgecolor="black", linewidth=0.8))
    _draw_line(ax, mean, _LENGTH * side, dashed=False)
    _draw_line(ax, true, 0.94 * _LENGTH * side, dashed=True)
    ax.set(xlim=(-side / 2, side / 2), ylim=(0, side), xticks=[], yticks=[])
    missed = abs(true - mean) > _REACH * std
    # Two digits with a sign; 0.00 has a plus, whatever was rounded away.
    said, driver = (f"{round(angle, 2) + 0.0:+.2f}" for angle in (mean, true))
    words = f"{said} ± {std:.2f}\ndriver {driver}"
    ax.set_xlabel(f"{words}, missed" if missed else words, fontsize=9.5)
    ax.spines[:].set(color=VERMILLION if missed else "black", linewidth=3 if missed else 0.8)
    return ax


def _draw_line(ax: Axes, angle: float, length: float, *, dashed: bool) -> None:
    """A bright line on a black one, which is seen on any road."""
    x, y = [0, length * math.sin(angle)], [0, length * math.cos(angle)]
    ax.plot(x, y, color="black", linewidth=3.4)
    color, dashes = ("white", (0, (3, 2))) if dashed else (ORANGE, "-")
    ax.plot(x, y, color=color, linewidth=2, linestyle=dashes)


def draw_key(figure: Figure) -> None:
    """What the wedge and the lines mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries = [
        (Line2D([], [], color=ORANGE, linewidth=3), "network"),
        (Patch(facecolor=ORANGE, alpha=0.45, edgecolor="black"), "95 % interval by howsure"),
        (Line2D([], [], color="black", linewidth=2, linestyle=(0, (3, 2))), "driver (true)"),
        (Patch(facecolor="none", edgecolor=VERMILLION, linewidth=2.5), "missed: outside"),
    ]
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)


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


_ROWS = ("one road", "least sure")


def save_picture(study: Study, path: Path) -> Path:
    """Writes the picture, whole or not at all, and returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 9.2), dpi=110, layout="constrained")
    grid: Any = figure.add_gridspec(4, len(study.outcomes), height_ratios=(2, 2, 0.95, 0.95))
    draw_gallery(figure, grid, study)
    draw_coverage(figure.add_subplot(grid[2, :]), study)
    draw_novelty(figure.add_subplot(grid[3, :]), study)
    draw_key(figure)
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def draw_gallery(figure: Figure, grid: GridSpec, study: Study) -> None:
    """A column per condition: the same road, and the one that howsure is least sure about."""
    same = typical(study)
    for column, outcome in enumerate(study.outcomes):
        for row, i in enumerate((same, outcome.by_certainty[-1])):
            ax = draw_road(figure.add_subplot(grid[row, column]), outcome, i)
            if row == 0:
                ax.set_title(f"{outcome.name}\n{study.told(outcome)}", fontsize=12, weight="bold")
            if column == 0:
                ax.set_ylabel(_ROWS[row], fontsize=12, weight="bold")


def typical(study: Study) -> int:
    """The road that stands for all: its stds are the closest to the conditions' medians.

    Taken among bends in good light, of which a picture shows more.
    """
    logs = torch.stack([outcome.var.log() for outcome in study.outcomes])
    gaps = (logs - logs.median(dim=1, keepdim=True).values).square().sum(0)
    bend, light = study.clear.true.abs(), study.clear.pairs.x.mean((1, 2, 3))
    suits = (bend >= bend.quantile(0.6)) & (light >= light.median())
    return int(torch.where(suits, gaps, gaps + gaps.max()).argmin())
