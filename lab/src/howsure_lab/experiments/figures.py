"""Figures of the experiments; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure import metrics
from howsure.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can tell apart; lines differ in style too.
COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999")
STYLES = ("-", "--", "-.", ":")
_OWN = "gradients"


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, Any]:
    """A figure with a grid of axes, drawn without a display; axes are always two-dimensional."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("Figures need matplotlib: `pip install 'howsure[plots]'`.") from None
    figure = Figure(figsize=(width, height), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as PNG."""
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def style_of(index: int) -> dict[str, Any]:
    """Color and line style of the n-th line."""
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": STYLES[index % len(STYLES)],
    }


def styles_of(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colors and lines of methods; that of the library itself is black and thick."""
    others = [name for name in methods if name != _OWN]
    styles = {name: style_of(index) for index, name in enumerate([_OWN, *others])}
    styles[_OWN]["linewidth"] = 2.5
    return styles


def with_legend(ax: Axes) -> Axes:
    """The axes with a legend, if a line has a name."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8)
    return ax


def draw_sparsification(
    ax: Axes,
    found: Mapping[str, tuple[Tensor, Tensor]],  # absolute errors and variances, by label
) -> Axes:
    """Mean error of what remains when the least sure predictions are removed."""
    for index, (label, (error, var)) in enumerate(found.items()):
        if bool((var == var.flatten()[0]).all()):
            continue
        curve = metrics.sparsification_curve(error, var)
        keep = curve.removed <= 0.95  # the last few are one or two predictions
        ax.plot(curve.removed[keep], curve.error[keep], label=label, **style_of(index))
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of the least sure that is removed", ylabel="mean error, relative")
    return with_legend(ax)


def draw_calibration(
    ax: Axes,
    found: Mapping[str, tuple[Tensor, Tensor]],  # absolute errors and variances, by label
) -> Axes:
    """Share of targets inside the central interval, against its level."""
    levels = torch.linspace(0.02, 0.98, 49)
    reach = 2**0.5 * torch.erfinv(levels)
    for index, (label, (error, var)) in enumerate(found.items()):
        scaled = (error / var.sqrt().clamp(min=1e-12)).flatten()
        inside = (scaled.unsqueeze(1) <= reach).double().mean(0)
        ax.plot(levels, inside, label=label, **style_of(index))
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    ax.set(xlabel="level of the interval", ylabel="share of targets inside")
    return with_legend(ax)
