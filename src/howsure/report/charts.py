"""The charts of a report: drawn by `howsure.plots`, kept as SVG in the colors of the page.

A chart comes once for every noise level, with the same axes, so that the slider moves the curves
and nothing else.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from howsure import plots
from howsure.plots.theme import DARK, LIGHT, Theme, finish, matplotlib, prepared, series
from howsure.report.options import Levels
from howsure.report.readings import short
from howsure.report.values import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from howsure.fit.dropout import Fit

T = TypeVar("T")

_SIZE = (4.4, 3.1)  # inches; letters of 8.5 points can be read on a phone
_PLACE = (0.16, 0.15, 0.81, 0.81)  # of the axes in the figure
MOST_MARKS = 80  # one for each prediction, which are to be told apart


def draw_levels(
    key: str,
    title: str,
    caption: str,
    draw: Callable[[Axes, T], object],
    levels: Sequence[T],
    limits_of: int | None = None,
) -> list[Chart]:
    """One chart for each level, with common axes; a metric's refusal becomes the caption.

    Args:
        key: The place on the page.
        title: The question that the chart answers.
        caption: How to read it.
        draw: Draws the data of one level into Axes.
        levels: The data of each level.
        limits_of: The level whose axes all have; by default axes that hold every level.
    """
    plain = matplotlib()
    from matplotlib.figure import Figure

    with plain.rc_context():
        # matplotlib as it comes, whatever the user has set, with text that stays text.
        plain.rcdefaults()
        plain.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "howsure"})
        with plots.style():
            axes = [Figure(figsize=_SIZE).add_axes(_PLACE) for _ in levels]
            refusals = dict.fromkeys(axes, "")
            for ax, data in zip(axes, levels, strict=True):
                try:
                    draw(ax, data)
                except ValueError as refusal:
                    refusals[ax] = f"Not defined here: {refusal}"
            drawn = [ax for ax in axes if not refusals[ax]]
            _share_limits(drawn, drawn if limits_of is None else [axes[limits_of]])
            return [
                Chart(key, title, refusal or caption, "" if refusal else _svg(ax))
                for ax, refusal in refusals.items()
            ]


def _share_limits(axes: Sequence[Axes], leaders: Sequence[Axes]) -> None:
    """Gives all axes one scale, and limits that hold those of the leaders."""
    for name in ("x", "y"):
        limits = [end for ax in leaders for end in getattr(ax, f"get_{name}lim")()]
        one_scale = len({getattr(ax, f"get_{name}scale")() for ax in axes}) == 1
        for ax in axes:
            if not one_scale:
                ax.set(**{f"{name}scale": "linear"})
            ax.set(**{f"{name}lim": (min(limits), max(limits))})


def _svg(ax: Axes) -> str:
    """The figure as an element of the page, with the page's variables for its colors."""
    from matplotlib.figure import Figure

    figure, file = ax.figure, io.StringIO()
    assert isinstance(figure, Figure)
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    _, svg = file.getvalue().split("<svg", 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", re.sub(r"\s*\n\s*", "\n", svg))
    # A tenth of a point is finer than a screen, and fonts are the page's; texts between the tags
    # stay as they are.
    unseen = re.compile(r'(?<=\.\d)\d+|font-family: [^;"]*;? ?')
    svg = re.sub("<[^>]+>", lambda tag: unseen.sub("", tag[0]), svg)
    names = {color: name for name, color in _colors(LIGHT).items()}
    svg = re.sub("|".join(names), lambda color: f"var({names[color[0]]})", svg)
    # A few styles repeat often. A rule in a drawing holds for the whole page, hence their names.
    rules: dict[str, str] = {}

    def as_class(style: re.Match[str]) -> str:
        name = f"s{zlib.crc32(style[1].encode()):x}"
        rules[name] = style[1]
        return f' class="{name}"'

    svg = re.sub(' style="([^"]*)"', as_class, svg)
    style = "".join(f".{name}{{{rule}}}" for name, rule in rules.items())
    return re.sub(
        '^.*?(viewBox=".*?").*?>', rf"<svg \1><style>{style}</style>", svg, flags=re.DOTALL
    )


def _colors(theme: Theme) -> dict[str, str]:
    """The colors of a theme by the variables of the page that stand for them."""
    marks = {f"--mark-{k}": mark.color.lower() for k, mark in enumerate(theme.marks)}
    return {"--paper": theme.background, "--ink": theme.ink, "--faint": theme.muted, **marks}


def variables(*, dark: bool) -> str:
    """The colors of the page as declarations of CSS: the theme of all plots, and four more."""
    colors = _colors(DARK if dark else LIGHT)
    page_colors = (
        ("#1e2228", "#aab2bd", "#7cc4f0", "#ff8a4d")
        if dark
        else ("#f5f6f8", "#545b64", "#00517f", "#c24400")
    )
    colors |= dict(zip(("--card", "--quiet", "--link", "--bad"), page_colors, strict=True))
    scheme = f"color-scheme: {'dark' if dark else 'light'};"
    return " ".join([scheme, *(f"{name}: {color};" for name, color in colors.items())])


def sparsification_charts(
    levels: Sequence[tuple[Tensor, Mapping[str, Tensor]]], what: str
) -> list[Chart]:
    """The error that remains when the least sure predictions are rejected, by each ranking."""

    def draw(ax: Axes, level: tuple[Tensor, Mapping[str, Tensor]]) -> None:
        ax.axhline(1, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)), label="no ranking")
        plots.sparsification(*level, points=60, ax=ax)
        # The last few predictions can be far above; the curves before them are what counts.
        ax.set_ylim(0, min(1.5, ax.get_ylim()[1]))

    return draw_levels(
        "sparsification",
        "Does the uncertainty find the errors?",
        f"{what}, relative to that of all predictions, when the least sure ones are rejected. The "
        "faster it falls, the better the uncertainty ranks the predictions.",
        draw,
        levels,
    )


def sweep_charts(
    levels: Levels, curves: Mapping[str, Sequence[float]], unit: str
) -> list[list[Chart]]:
    """What is predicted and what is observed against the noise; nothing for a single level."""
    if len(levels.factors) == 1:
        return []
    factors = torch.tensor(levels.factors).numpy()

    def draw(ax: Axes, index: int) -> None:
        prepared(ax)
        for k, (name, values) in enumerate(curves.items()):
            series(ax, factors, torch.tensor(values).numpy(), k, name)
            (diamond,) = ax.plot(factors[index], values[index], "D", markersize=9)
            diamond.set(color=LIGHT.mark(3).color, markerfacecolor="none")
            diamond.set_label("" if k else "this level")
        if factors.min() > 0:
            ax.set_xscale("log")
        ax.set_xticks(factors, [f"{factor:g}" for factor in factors], minor=False)
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        finish(ax, "noise std, in multiples of the stated one", unit)

    title = "Which noise fits the errors?"
    caption = (
        "The inputs stay as they are, only the noise that is assumed changes. Where the curves "
        "meet, it fits the errors. Diamonds mark the level shown."
    )
    if levels.added:
        title = "Does the uncertainty follow the noise?"
        caption = (
            "A better and a worse sensor: as much noise as is assumed is added to the inputs. "
            "Where the curves part, the uncertainty no longer follows the errors. Diamonds mark "
            "the level shown."
        )
    return [draw_levels("sweep", title, caption, draw, range(len(factors)))]


def search_chart(fit: Fit) -> Chart | None:
    """The curve of a rate search; `None` where it has no points to draw."""
    if fit.rate is None or sum(map(math.isfinite, fit.nll)) < 2:
        return None
    best = (
        f"{len(fit.rate)} rates were found, one for each site"
        if isinstance(fit.rate, tuple)
        else f"The best rate is {short(fit.rate)}"
    )
    (chart,) = draw_levels(
        "search",
        "Which dropout rate explains the errors?",
        f"Negative log-likelihood of {fit.count:,} held-out inputs at each rate; lower is better. "
        f"{best}.",
        lambda ax, fit: plots.rate_search(fit, ax=ax),
        [fit],
    )
    return chart
