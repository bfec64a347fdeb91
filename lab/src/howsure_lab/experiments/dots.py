"""Dot plots: a row for every contender, a panel for every metric or condition.

Names stand beside the rows, so that no legend covers a dot.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure_lab.experiments.contenders import CONTENDERS, LABELS
from howsure_lab.experiments.figures import COLORS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.24  # inches for a line of text
_WIDEST = 4  # panels side by side
# How far the axis goes, in distances from the best method to the middle one: what is farther out
# stands at the edge, with its number.
_REACH = 3.0
_CAPTION = "Dots are means; lines reach one standard deviation over seeds or splits."


@dataclass(frozen=True)
class Panel:
    """A metric under one condition.

    Attributes:
        title: Above the panel.
        metric: What the axis shows.
        values: For every method, one value for each seed or split; `None` where it has none, such
            as a share of errors found where there was no error.
        wanted: Where a dot should be, such as 0.95 for coverage; drawn as a line.
        lower_is_better: Whether the far dots are those with high values.
        whole: The whole range of the metric, where panels are to be compared.
    """

    title: str
    metric: str
    values: Mapping[str, Sequence[float | None]]
    wanted: float | None = None
    lower_is_better: bool = True
    whole: tuple[float, float] | None = None

    def known(self, name: str) -> list[float]:
        """The values of a method that there are."""
        return [value for value in self.values.get(name, ()) if value is not None]


def covered(title: str, values: Mapping[str, Sequence[float]]) -> Panel:
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
            ax.annotate(_short(mean), (edge, row), ha="right", va="center", fontsize=8, **note)
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


def _short(value: float) -> str:
    """Two digits at least, none behind the point where there are three before it."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _edge(panel: Panel) -> float:
    """Where the axis ends: one method that is far off must not press all others together."""
    found = (panel.known(name) for name in panel.values)
    means = sorted(statistics.fmean(values) for values in found if values)
    if not means:
        return 1.0
    lowest, middle = means[0], means[len(means) // 2]
    inner = max(middle - lowest, 1e-9)
    within = [mean for mean in means if mean <= lowest + _REACH * inner]
    return max(within) + 0.25 * inner


def _color(name: str) -> str:
    """Blue for the library's own way, orange for other ensembles, black for the others."""
    contender = CONTENDERS.get(name)
    if contender is not None and contender.fit == "auto":
        return COLORS[4]
    return COLORS[5] if contender is not None and contender.members > 1 else COLORS[0]
