"""Figures of the experiments: curves, dot plots, maps; matplotlib is imported when one is drawn.

Names stand beside the rows, so that no legend covers a dot.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from howsure.files import write_atomically
from howsure_lab.experiments.contenders import CONTENDERS, LABELS
from howsure_lab.optional import imported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colors, which color-blind readers can tell apart; lines differ in style too.
COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999")
STYLES = ("-", "--", "-.", ":")
_OWN = "gradients"


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, Any]:
    """A figure with a grid of axes, drawn without a display; axes are always two-dimensional."""
    needed = "matplotlib.figure", "Figures need matplotlib", "'howsure[plots]'"
    figure = imported(*needed).Figure(figsize=(width, height), layout="constrained", dpi=100)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as PNG."""
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def styles_of(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colors and lines of methods; that of the library itself is black and thick."""
    names = [_OWN, *(name for name in methods if name != _OWN)]
    looks = zip(names, cycle(COLORS), cycle(STYLES), strict=False)
    styles: dict[str, dict[str, Any]] = {
        name: {"color": color, "linestyle": style} for name, color, style in looks
    }
    styles[_OWN]["linewidth"] = 2.5
    return styles


_ROW = 0.24  # inches for a line of text
_WIDEST = 4  # panels side by side
# How far the axis goes, in distances from the best method to the middle one: what is farther out
# stands at the edge, with its number.
_REACH = 3.0
_CAPTION = "Dots are means; lines reach one standard deviation over seeds or splits."


@dataclass(frozen=True)
class Panel:
    """A metric under one condition."""

    title: str
    metric: str  # what the axis shows
    # By method, for each seed or split; `None` for what a run does not have, such as a share of
    # errors found where there was no error.
    values: Mapping[str, Sequence[float | None]]
    wanted: float | None = None  # where a dot should be, such as 0.95 for coverage; a line
    lower_is_better: bool = True  # whether the far dots are those with high values
    whole: tuple[float, float] | None = None  # range of the metric, if panels are to be compared

    def known(self, name: str) -> list[float]:
        """The values of a method that there are."""
        return [value for value in self.values.get(name, ()) if value is not None]


def coverage_panel(title: str, values: Mapping[str, Sequence[float]]) -> Panel:
    """The panel of how many targets 95 % intervals cover."""
    words = "coverage of 95 % intervals"
    return Panel(title, words, values, 0.95, lower_is_better=False, whole=(0, 1.03))


def draw_dots(panels: Sequence[Panel], path: Path, labels: Mapping[str, str] = LABELS) -> Path:
    """Writes the panels as PNG; every panel has the same rows, the first method on top."""
    methods = list(dict.fromkeys(name for panel in panels for name in panel.values))
    rows = -(-len(panels) // _WIDEST)
    columns = -(-len(panels) // rows)
    height = rows * (_ROW * len(methods) + 1.0)
    figure, axes = new_figure(rows, columns, width=2.6 * columns + 3.0, height=height)
    for index, ax in enumerate(axes.flat):
        if index >= len(panels):
            ax.set_axis_off()
            continue
        _draw(ax, panels[index], methods)
        names = [labels.get(name, name) for name in methods] if index % columns == 0 else []
        ax.set_yticks(range(len(methods)), names or [""] * len(methods))
    if any(len(values) > 1 for panel in panels for values in panel.values.values()):
        figure.supxlabel(_CAPTION, fontsize=8, color="0.35")
    return save(figure, path)


def _draw(ax: Axes, panel: Panel, methods: Sequence[str]) -> None:
    edge = _edge(panel)
    for row, name in enumerate(methods):
        values = panel.known(name)
        if not values:
            continue
        color = _color(name)
        mean = statistics.fmean(values)
        if panel.lower_is_better and mean > edge:
            ax.plot(edge, row, marker=">", color=color, clip_on=False)
            note: dict[str, Any] = {"xytext": (-7, 0), "textcoords": "offset points"}
            # Two digits at least, none behind the point where there are three before it.
            words = f"{mean:{',.0f' if mean >= 100 else '.1f' if mean >= 1 else '.2g'}}"
            ax.annotate(words, (edge, row), ha="right", va="center", fontsize=8, **note)
            continue
        spread = statistics.stdev(values) if len(values) > 1 else None
        ax.errorbar(mean, row, xerr=spread, fmt="o", color=color, markersize=5, linewidth=1.2)
    if panel.wanted is not None:
        ax.axvline(panel.wanted, color="0.5", linewidth=1, zorder=0)
    ax.set(title=panel.title, xlabel=panel.metric, ylim=(len(methods) - 0.5, -0.5))
    ax.grid(axis="y", color="0.92")
    ax.set_axisbelow(True)
    if panel.whole is not None:
        ax.set(xlim=panel.whole, xticks=(0, 0.5, 1))
    elif panel.lower_is_better:
        ax.set_xlim(right=edge)


def _edge(panel: Panel) -> float:
    """Where the axis ends: one method that is far off must not press all others together."""
    known = (panel.known(name) for name in panel.values)
    means = sorted(statistics.fmean(values) for values in known if values) or [1.0]
    inner = max(means[len(means) // 2] - means[0], 1e-9)
    return max(mean for mean in means if mean <= means[0] + _REACH * inner) + 0.25 * inner


def _color(name: str) -> str:
    """Blue for the library's own way, orange for other ensembles, black for the others."""
    contender = CONTENDERS.get(name, CONTENDERS["constant"])
    if contender.fit == "auto":
        return COLORS[4]
    return COLORS[5] if contender.members > 1 else COLORS[0]


# What a column shows, (height, width), and how: the arguments of `imshow`.
Columns = Mapping[str, tuple[Tensor, Mapping[str, Any]]]
GRAY = {"cmap": "gray", "vmin": 0, "vmax": 1}


def draw_maps(rows: Mapping[str, Columns], path: Path) -> Path:
    """Writes the maps as PNG, rows and columns by their names, with the scale of each column."""
    titles = list(next(iter(rows.values())))
    figure, axes = new_figure(len(rows), len(titles), width=11, height=5.6)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    drawn = []
    for row, (label, columns) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(label)
        drawn = [
            ax.imshow(values.numpy(), **how)
            for ax, (values, how) in zip(row, columns.values(), strict=True)
        ]
        for ax in row:
            ax.set(xticks=[], yticks=[])
    for column, image in enumerate(drawn):
        figure.colorbar(image, ax=axes[:, column], location="bottom")
    return save(figure, path)
