"""Predictions and scores along a line: bands, noise levels, numbers of samples, dropout rates."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from howsure.plots.theme import (
    NORMAL,
    SMALL,
    diagonal,
    equal_scales,
    fill,
    finish,
    prepared,
    series,
)
from howsure.plots.values import (
    Array,
    Predicted,
    array,
    by_name,
    mean_and_var,
    same_length,
    tensor,
    variance,
)
from howsure.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from howsure.fit import Fit


def bands(
    x: object,  # (n,)
    predicted: Predicted,  # of (n,) or (n, outputs)
    *,
    truth: Any = None,  # (n,), or a pair of x and y
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

    Examples:
        >>> x = torch.linspace(0, 1, 5)
        >>> p = hs.Prediction(x[:, None], torch.ones(5, 1), torch.zeros(5, 1))
        >>> ax = hs.plots.bands(x, p)
        >>> len(ax.lines) > 0
        True
    """
    if not 0 < level < 1:
        raise ValueError(f"`level` is {level}; give a probability between 0 and 1, such as 0.95.")
    places = array("x", x, "(n,)")
    moments = mean_and_var(predicted)
    mean, total = _column("mean", moments[0], output), _column("var", moments[1], output)
    same_length(x=places, mean=mean)
    split = isinstance(predicted, Prediction)
    data = total
    if split:
        data = _column("data_var", variance("data_var", predicted.data_var), output)
    at, values = places, None
    if truth is not None:
        at, truth = truth if isinstance(truth, tuple) and len(truth) == 2 else (places, truth)
        at, values = array("truth[0]", at, "(n,)"), _column("truth", tensor("truth", truth), output)
        same_length(x=at, truth=values)
    order, reach = places.argsort(kind="stable"), NormalDist().inv_cdf((1 + level) / 2)
    x, mean, inner, outer = (
        column[order] for column in (places, mean, reach * np.sqrt(data), reach * np.sqrt(total))
    )
    ax, theme = prepared(ax)
    name = "sensor's noise (data)" if split else "total"
    fill(ax, x, mean - inner, mean + inner, 0, alpha=0.4, label=name)
    if split:
        edge = {"edgecolor": theme.mark(1).color, "hatch": "////", "linewidth": 0.8}
        ring = {"facecolor": "none", **edge}
        ax.fill_between(x, mean + inner, mean + outer, label="added by the model", **ring)
        ax.fill_between(x, mean - outer, mean - inner, **ring)
    ax.plot(x, mean, color=theme.mark(0).color, linewidth=1.8, label="mean")
    if values is not None:
        ax.plot(at, values, "o", color=theme.ink, markersize=3, alpha=0.7, label="truth")
    return finish(ax, "x", "prediction", title=f"{100 * level:g} % bands")


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

    Examples:
        >>> ax = hs.plots.noise_sweep([0.1, 0.2], {"howsure": [0.2, 0.4]}, [0.2, 0.41])
        >>> len(ax.lines) > 0
        True
    """
    noise = array("noise_std", noise_std, "(levels,)")
    true = array("true_std", true_std, "(levels,)")
    lines = {n: array("predicted_std", s, "(levels,)") for n, s in by_name(predicted_std).items()}
    for line in lines.values():
        same_length(noise_std=noise, true_std=true, predicted_std=line)
    if min(x.min() for x in (noise, true, *lines.values())) < 0:
        raise ValueError("A std is negative; give standard deviations of 0 or more.")
    ax, theme = prepared(ax, size=(4.8, 4.4))
    ends = equal_scales(ax, np.concatenate([true, *lines.values()]), log=True)
    diagonal(ax, *ends, "as sure as it should be")
    order = true.argsort(kind="stable")
    for index, (name, line) in enumerate(lines.items()):
        series(ax, true[order], line[order], index, name or "predicted")
    top = ax.secondary_xaxis("top")
    top.set_xticks(true, [f"{level:g}" for level in noise], minor=False)
    top.minorticks_off()
    top.set_xlabel("std of the sensor's noise", fontsize=NORMAL, color=theme.ink)
    top.tick_params(colors=theme.ink, labelsize=SMALL)
    top.spines[:].set_color(theme.ink)
    return finish(ax, "true std", "predicted std", loc="upper left")


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

    Examples:
        >>> ax = hs.plots.nll_vs_samples([2, 10, 50], {"dropout": [1.0, 0.7, 0.6]})
        >>> len(ax.lines) > 0
        True
    """
    counts = array("samples", samples, "(k,)")
    if counts.min() <= 0:
        raise ValueError("`samples` must be positive, because its axis is logarithmic.")
    order = counts.argsort(kind="stable")
    curves = {}
    for name, values in by_name(nll).items():
        scores = tensor("nll", values)
        if scores.dim() not in (1, 2) or len(scores) != len(counts) or scores.numel() == 0:
            raise ValueError(
                f"`nll` has shape {tuple(scores.shape)} for {len(counts)} numbers of samples; give "
                f"({len(counts)},) or ({len(counts)}, repeats)."
            )
        curves[name] = scores.reshape(len(counts), -1).numpy()[order]
    levels = {name: float(tensor(name, value)) for name, value in (single_pass or {}).items()}
    ax, theme = prepared(ax)
    for index, (name, repeats) in enumerate(curves.items()):
        mean, std = repeats.mean(1), repeats.std(1)
        series(ax, counts[order], mean, index, name or "sampling")
        if repeats.shape[1] > 1:
            fill(ax, counts[order], mean - std, mean + std, index)
    for index, (name, level) in enumerate(levels.items(), start=len(curves)):
        mark = theme.mark(index)
        ax.axhline(level, color=mark.color, linestyle=mark.line, label=name)
    ax.set_xscale("log")
    ax.set_xticks(counts, [f"{count:g}" for count in counts], minor=False)
    ax.minorticks_off()
    return finish(ax, "samples T", "NLL")


def rate_search(
    fit: Fit,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the NLL at every rate that was tried, its standard error, and the best rate.

    `fit` is what `Uncertain.fit` returns and `Uncertain.last_fit` keeps. A rate of 0 stands at the
    left end of the otherwise logarithmic axis. Rates whose NLL is not finite, as with a variance
    of 0, are left out, and the label of the axis counts them.

    Examples:
        >>> rates, nll = (0.05, 0.1, 0.2), (1.2, 1.0, 1.1)
        >>> fit = hs.fit.Fit(rates, nll, (0.1, 0.1, 0.1), 0.1, 0.0, "gaussian", 50, 100)
        >>> ax = hs.plots.rate_search(fit)
        >>> len(ax.lines) > 0
        True
    """
    if not hasattr(fit, "rates"):
        raise TypeError(
            f"`fit` is a {type(fit).__name__}; pass what `Uncertain.fit` returns, also kept as "
            "`Uncertain.last_fit`."
        )
    if fit.rate is None:
        raise ValueError("This method has no rate, so there is no search to plot.")
    columns = np.array([fit.rates, fit.nll, fit.standard_error], dtype=float)
    columns = columns[:, columns[0].argsort(kind="stable")]
    rates, nll, error = columns[:, np.isfinite(columns[1])]
    error = np.where(np.isfinite(error), error, 0.0)  # one input alone has no standard error
    ax, theme = prepared(ax)
    mark, best = theme.mark(0), theme.mark(1)
    fill(ax, rates, nll - error, nll + error, 0, label="± standard error")
    ax.plot(rates, nll, color=mark.color, marker=mark.marker, markersize=4, label="NLL")
    star = {"marker": "*", "markersize": 15, "linestyle": "none", "markeredgecolor": theme.ink}
    name = f"best rate {fit.rate:.3g}"
    at_best = fit.nll[fit.rates.index(fit.rate)]
    ax.plot(fit.rate, at_best, color=best.color, **star, zorder=4, label=name)
    positive = rates[rates > 0]
    if len(positive) == len(rates):
        ax.set_xscale("log")
    elif len(positive):
        ax.set_xscale("symlog", linthresh=float(positive.min()), linscale=0.4)
        ax.set_xlim(left=-0.1 * float(positive.min()))
    # Small rates can give a variance near 0 and an NLL that dwarfs the minimum.
    middle = float(np.median(nll) - nll.min())
    if middle > 0 and np.ptp(nll) > 30 * middle:
        ax.set_yscale("symlog", linthresh=max(1.0, float(np.abs(nll).min())))
    left_out = columns.shape[1] - len(rates)
    note = f" ({left_out} not finite)" if left_out else ""
    return finish(ax, f"dropout rate{note}", "NLL of held-out data")
