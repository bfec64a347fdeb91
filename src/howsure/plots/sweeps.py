"""How the uncertainty follows the noise, and how many samples a method needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from howsure.plots.canvas import diagonal, equal_scales, label, legend, prepared, series
from howsure.plots.theme import NORMAL, SMALL, current
from howsure.plots.values import Array, array, by_name, same_length, tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def noise_sweep(
    noise_std: object,  # (levels,)
    predicted_std: object,  # (levels,), or several by name
    true_std: object,  # (levels,)
    *,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the predicted against the true std at each level of the sensor's noise.

    Below the diagonal the method is too sure. The true std is that of Monte Carlo, or of the
    errors. The upper axis names the noise levels.
    """
    noise = array("noise_std", noise_std, "(levels,)")
    true = array("true_std", true_std, "(levels,)")
    lines = {n: array("predicted_std", s, "(levels,)") for n, s in by_name(predicted_std).items()}
    for line in lines.values():
        same_length(noise_std=noise, true_std=true, predicted_std=line)
    if min(x.min() for x in (noise, true, *lines.values())) < 0:
        raise ValueError("A std is negative; give standard deviations of 0 or more.")
    ax, _ = prepared(ax, size=(4.8, 4.4))
    ends = equal_scales(ax, np.concatenate([true, *lines.values()]), log=True)
    diagonal(ax, *ends, "as sure as it should be")
    order = true.argsort(kind="stable")
    for index, (name, line) in enumerate(lines.items()):
        series(ax, true[order], line[order], index, name or "predicted")
    label(ax, "true std", "predicted std")
    _name_levels(ax, true, noise)
    legend(ax, loc="upper left")
    return ax


def nll_vs_samples(
    samples: object,  # (k,)
    nll: object,  # (k,) or (k, repeats), or several by name
    *,
    single_pass: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the NLL of sampling methods against the number of samples T, lower is better.

    Args:
        samples: The numbers of samples, on a logarithmic axis.
        nll: The NLL with each; repeats give a band of one std around their mean.
        single_pass: Methods whose cost does not depend on T, drawn as horizontal lines.
        ax: Where to draw; by default a new figure.
    """
    counts = array("samples", samples, "(k,)")
    if counts.min() <= 0:
        raise ValueError("`samples` must be positive, because its axis is logarithmic.")
    curves = {name: _repeats(values, len(counts)) for name, values in by_name(nll).items()}
    levels = {name: float(tensor(name, value)) for name, value in (single_pass or {}).items()}
    ax, theme = prepared(ax)
    order = counts.argsort(kind="stable")
    for index, (name, repeats) in enumerate(curves.items()):
        mark, mean, std = theme.mark(index), repeats.mean(1), repeats.std(1)
        series(ax, counts[order], mean[order], index, name or "sampling")
        band = {"facecolor": mark.colour, "alpha": 0.2, "linewidth": 0}
        if repeats.shape[1] > 1:
            ax.fill_between(counts[order], (mean - std)[order], (mean + std)[order], **band)
    for index, (name, level) in enumerate(levels.items(), start=len(curves)):
        mark = theme.mark(index)
        ax.axhline(level, color=mark.colour, linestyle=mark.line, label=name)
    ax.set_xscale("log")
    ax.set_xticks(counts, [f"{count:g}" for count in counts], minor=False)
    ax.minorticks_off()
    label(ax, "samples T", "NLL")
    legend(ax)
    return ax


def _repeats(values: object, count: int) -> Array:
    """The values as (k, repeats)."""
    found = tensor("nll", values)
    table = found.unsqueeze(1) if found.dim() == 1 else found
    if table.dim() != 2 or table.shape[0] != count or table.shape[1] == 0:
        raise ValueError(
            f"`nll` has shape {tuple(found.shape)} for {count} numbers of samples; give "
            f"({count},) or ({count}, repeats)."
        )
    return table.numpy()


def _name_levels(ax: Axes, true: Array, noise: Array) -> None:
    """A second axis on top, which tells which point belongs to which noise."""
    top = ax.secondary_xaxis("top")
    top.set_xticks(true, [f"{level:g}" for level in noise], minor=False)
    top.minorticks_off()
    top.set_xlabel("std of the sensor's noise", fontsize=NORMAL, color=current().ink)
    top.tick_params(colors=current().ink, labelsize=SMALL)
    top.spines[:].set_color(current().ink)
