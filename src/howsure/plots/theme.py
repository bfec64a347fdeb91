"""How all plots look: one light and one dark theme, for any color vision and without color.

The colors are those of Okabe and Ito (2008). Every series has a line style, a marker and a hatch
of its own as well, so that a plot can be read in black and white.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap

SMALL, NORMAL = 8.5, 10.0

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
        import numpy as np
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
    try:
        import matplotlib
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"Plots need matplotlib ({missing}); run `pip install 'howsure[plots]'`."
        ) from missing
    return matplotlib


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
