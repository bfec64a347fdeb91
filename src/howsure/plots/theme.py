"""How all plots look: one light and one dark theme, and the parts that all plots have.

The colors are those of Okabe and Ito (2008), for any color vision. Every series has a line style, a
marker and a hatch of its own as well, so that a plot can be read in black and white.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from howsure.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    from howsure.plots.values import Array

SMALL, NORMAL = 8.5, 10.0
_CROWDED = 10_000  # points, among which the best place of a legend is sought for long

_BLUE, _SKY, _GREEN, _YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
_ORANGE, _VERMILLION, _PURPLE = "#E69F00", "#D55E00", "#CC79A7"
_LINES: tuple[object, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (7, 2)), (0, (4, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_HATCHES = ("", "//", "..", "\\\\", "xx", "oo")


@dataclass(frozen=True)
class Mark:
    """How one series is drawn; no two marks of a theme share a line, a marker or a hatch.

    Examples:
        >>> with hs.plots.style() as theme:
        ...     mark = theme.marks[0]
        ...
        >>> mark.color, mark.marker
        ('#0072B2', 'o')
    """

    color: str
    line: object  # a name, or matplotlib's (offset, dashes)
    marker: str
    hatch: str


@dataclass(frozen=True)
class Theme:
    """The colors of a plot.

    Attributes:
        background: Behind everything.
        ink: Text, frames, true values and ideal lines.
        muted: The grid, and what only gives context.
        marks: The series, in the order in which they are used.
        shades: From which to which part of the map "cividis" a scale goes, small values first.
            Small values stay close to the background and large values stand out; neither end
            vanishes in it.

    Examples:
        >>> with hs.plots.style(dark=True) as theme:
        ...     colors = [mark.color for mark in theme.marks]
        ...
        >>> len(set(colors)) == len(colors)
        True
    """

    background: str
    ink: str
    muted: str
    marks: tuple[Mark, ...]
    shades: tuple[float, float]

    def mark(self, index: int) -> Mark:
        """The mark of a series; beyond the last mark, the same colors with another look."""
        count = len(self.marks)
        look = self.marks[(index + index // count) % count]
        return replace(look, color=self.marks[index % count].color)

    @property
    def scale(self) -> ListedColormap:
        """Colors of a quantity, whose luminance changes in one direction only."""
        from matplotlib import colormaps
        from matplotlib.colors import ListedColormap

        return ListedColormap(colormaps["cividis"](np.linspace(*self.shades, 128)))

    @property
    def settings(self) -> dict[str, str]:
        """The same for matplotlib's `rc_context`, for figures that are made inside it."""
        text = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        ground = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        colors: dict[str, str] = dict.fromkeys(text, self.ink)
        return colors | dict.fromkeys(ground, self.background)


def _marks(*colors: str) -> tuple[Mark, ...]:
    return tuple(map(Mark, colors, _LINES, _MARKERS, _HATCHES))


# Yellow vanishes on white and blue on black.
LIGHT = Theme(
    "#ffffff",
    "#1a1a1a",
    "#b0b0b0",
    _marks(_BLUE, _VERMILLION, _GREEN, _PURPLE, _ORANGE, _SKY),
    (0.85, 0.0),
)
DARK = Theme(
    "#15181c",
    "#e8e8e8",
    "#5c6269",
    _marks(_SKY, _VERMILLION, _GREEN, _PURPLE, _ORANGE, _YELLOW),
    (0.25, 1.0),
)

_chosen: ContextVar[Theme | None] = ContextVar("theme", default=None)


def matplotlib() -> ModuleType:
    """Matplotlib, or an error that says how to get it."""
    return import_extra("matplotlib", "Plots need `matplotlib`", "plots")


@contextmanager
def style(*, dark: bool = False) -> Iterator[Theme]:
    """The theme of all plots inside a `with` block; make the figure inside it as well.

    Examples:
        >>> with hs.plots.style(dark=True) as theme:
        ...     ax = hs.plots.heatmap(torch.rand(8, 8), torch.rand(8, 8))
        ...
        >>> theme.background
        '#15181c'
    """
    theme = DARK if dark else LIGHT
    token = _chosen.set(theme)
    try:
        with matplotlib().rc_context(theme.settings):
            yield theme
    finally:
        _chosen.reset(token)


def current() -> Theme:
    """The theme of the `style` block around the call, else the light one."""
    return _chosen.get() or LIGHT


def dress(ax: Axes) -> Theme:
    """The current theme, put on Axes that may have been made outside of it."""
    theme = current()
    if _chosen.get() is not None:
        ax.figure.set_facecolor(theme.background)
    ax.set_facecolor(theme.background)
    ax.tick_params(which="both", colors=theme.ink, labelsize=SMALL)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
        text.set_color(theme.ink)
    for side, spine in ax.spines.items():
        spine.set_color(theme.ink)
        spine.set_visible(side in ("left", "bottom"))
    return theme


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
