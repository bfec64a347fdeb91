"""Where plots are drawn: Axes, their labels, legends and color bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from howsure.plots.theme import NORMAL, SMALL, Theme, current, dress, matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from howsure.plots.values import Array

_CROWDED = 10_000


def new_figure(size: tuple[float, float]) -> Figure:
    """A new figure in the current theme, which `plt.show` shows."""
    matplotlib()
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained", facecolor=current().background)


def prepared(ax: Axes | None, *, size: tuple[float, float] = (5.2, 3.8)) -> tuple[Axes, Theme]:
    """The given Axes, or those of a new figure, in the current theme."""
    matplotlib()
    from matplotlib.axes import Axes

    if ax is None:
        ax = new_figure(size).add_subplot()
    if not isinstance(ax, Axes):
        raise TypeError(
            f"`ax` is a {type(ax).__name__}; pass matplotlib Axes, for example "
            "`figure.add_subplot()`, or nothing for a new figure."
        )
    return ax, dress(ax)


def finish(ax: Axes, x: str, y: str, **legend: Any) -> Axes:
    """The Axes with names, a quiet grid behind the data, and a legend of all that has a name."""
    theme = current()
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    ax.grid(color=theme.muted, alpha=0.35, linewidth=0.6)
    ax.set_axisbelow(True)
    if ax.get_legend_handles_labels()[1]:
        # The best place is sought among all points, which takes long where there are many.
        crowded = sum(np.size(line.get_xdata()) for line in ax.lines) > _CROWDED
        place = {"loc": "upper left" if crowded else "best"}
        box = ax.legend(fontsize=SMALL, handlelength=3.2, **{**place, **legend})
        box.get_frame().set(facecolor=theme.background, edgecolor=theme.muted, alpha=0.85)
        for text in (*box.get_texts(), box.get_title()):
            text.set(color=theme.ink, fontsize=SMALL)
    return ax


def color_bar(ax: Axes, drawn: ScalarMappable, name: str) -> None:
    """A scale for the colors of what was drawn."""
    theme = current()
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.85)
    bar.set_label(name, color=theme.ink, fontsize=NORMAL)
    bar.ax.tick_params(colors=theme.ink, labelsize=SMALL)
    bar.outline.set_edgecolor(theme.muted)


def series(ax: Axes, x: Array, y: Array, index: int, name: str) -> None:
    """The line of one method, with a marker at about ten of its points."""
    mark = current().mark(index)
    look = {"color": mark.color, "linestyle": mark.line, "marker": mark.marker, "markersize": 5}
    ax.plot(x, y, **look, markevery=max(1, len(x) // 10), label=name)


def fill(ax: Axes, x: Array, low: Array, high: Array, index: int, **look: Any) -> None:
    """A pale area in the color of one method."""
    color = current().mark(index).color
    ax.fill_between(x, low, high, **{"facecolor": color, "alpha": 0.25, "linewidth": 0, **look})


def equal_scales(ax: Axes, values: Array, *, log: bool) -> tuple[float, float]:
    """Limits that both axes share: logarithmic if asked and possible, else linear from 0."""
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        ax.set(xscale="log", yscale="log")
        low, high = low / 1.3, high * 1.3
    else:
        low, high = 0.0, 1.08 * high if high else 1.0
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    return low, high


def diagonal(ax: Axes, low: float, high: float, name: str) -> None:
    """The line on which both axes are equal."""
    ends = [low, high]
    ax.plot(ends, ends, color=current().ink, linewidth=1, linestyle=(0, (2, 2)), label=name)


def frame(ax: Axes) -> None:
    """Turns Axes into a picture frame: no ticks, all four sides."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color=current().muted)
