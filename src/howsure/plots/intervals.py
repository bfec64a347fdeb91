"""Predictions along a line, with bands for what the sensor and the model leave open."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from howsure.plots.canvas import label, legend, prepared
from howsure.plots.theme import Theme
from howsure.plots.values import (
    Array,
    Predicted,
    array,
    mean_and_var,
    same_length,
    tensor,
    variance,
)
from howsure.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bands(
    x: object,  # (n,)
    predicted: Predicted,  # of (n,) or (n, outputs)
    *,
    truth: object = None,  # (n,), or a pair of x and y
    level: float = 0.95,
    output: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the mean and its central interval, split into data and model.

    The inner band is what the sensor's noise alone would leave open, mean ± z sqrt(data_var); the
    hatched ring around it is what the model adds, up to mean ± z sqrt(total_var), with
    z = Phi^-1((1 + level) / 2). Variances add and widths do not, hence a ring. A pair (mean, var)
    has one band.

    Args:
        x: Position of each prediction, in any order.
        predicted: What was predicted there.
        truth: True values, drawn as points: at `x`, or a tuple of positions and values.
        level: Probability inside the bands.
        output: Which output, where there are several.
        ax: Where to draw; by default a new figure.
    """
    if not 0 < level < 1:
        raise ValueError(f"`level` is {level}; give a probability between 0 and 1, such as 0.95.")
    places = array("x", x, "(n,)")
    mean, *stds = _mean_and_stds(predicted, output)
    same_length(x=places, mean=mean)
    points = None if truth is None else _points(places, truth, output)
    order, reach = places.argsort(kind="stable"), NormalDist().inv_cdf((1 + level) / 2)
    ax, theme = prepared(ax)
    _draw_bands(ax, theme, places[order], mean[order], [reach * std[order] for std in stds])
    if points:
        ax.plot(*points, "o", color=theme.ink, markersize=3, alpha=0.7, label="truth")
    label(ax, "x", "prediction")
    legend(ax, title=f"{100 * level:g} % bands")
    return ax


def _mean_and_stds(predicted: Predicted, output: int | None) -> list[Array]:
    """The mean, and standard deviations from the innermost band to the outermost."""
    mean, var = mean_and_var(predicted)
    variances = [var]
    if isinstance(predicted, Prediction):
        variances = [variance("data_var", predicted.data_var).expand_as(mean), var]
    stds = [np.sqrt(_column("var", v, output)) for v in variances]
    return [_column("mean", mean, output), *stds]


def _points(x: Array, truth: Any, output: int | None) -> tuple[Array, Array]:
    """Positions and values of the true points."""
    own_places = isinstance(truth, tuple) and len(truth) == 2
    places = array("truth[0]", truth[0], "(n,)") if own_places else x
    values = _column("truth", tensor("truth", truth[1] if own_places else truth), output)
    same_length(x=places, truth=values)
    return places, values


def _column(name: str, value: Tensor, output: int | None) -> Array:
    """One output for every position, (n,)."""
    if value.dim() == 0 or value.numel() == 0:
        raise ValueError(f"`{name}` has shape {tuple(value.shape)}; give one row for each `x`.")
    flat = value.reshape(len(value), -1)
    count = flat.shape[1]
    if count == 1:
        return flat[:, 0].numpy()
    if output is None or not -count <= output < count:
        raise ValueError(
            f"`{name}` has shape {tuple(value.shape)}, {count} outputs for each position, and "
            f"`output` is {output}; choose one from 0 to {count - 1}."
        )
    return flat[:, output].numpy()


def _draw_bands(ax: Axes, theme: Theme, x: Array, mean: Array, widths: list[Array]) -> None:
    """The inner band plain, the ring around it hatched, and the mean on top."""
    sensor, model = theme.mark(0), theme.mark(1)
    inner, outer, split = widths[0], widths[-1], len(widths) == 2
    name = "sensor's noise (data)" if split else "total"
    plain = {"facecolor": sensor.colour, "alpha": 0.4, "linewidth": 0}
    ax.fill_between(x, mean - inner, mean + inner, label=name, **plain)
    if split:
        ring = {"facecolor": "none", "edgecolor": model.colour, "hatch": "////", "linewidth": 0.8}
        ax.fill_between(x, mean + inner, mean + outer, label="added by the model", **ring)
        ax.fill_between(x, mean - outer, mean - inner, **ring)
    ax.plot(x, mean, color=sensor.colour, linewidth=1.8, label="mean")
