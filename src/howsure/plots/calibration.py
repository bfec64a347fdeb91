"""Whether an uncertainty is calibrated, and whether it ranks the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsure import metrics
from howsure.metrics.regression import PERCENT
from howsure.plots.theme import diagonal, equal_scales, fill, finish, prepared, series
from howsure.plots.values import (
    Predicted,
    array,
    by_name,
    mean_and_var,
    same_length,
    tensor,
    thinned,
    titled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    predicted: Predicted | Mapping[str, Predicted],
    target: object,  # like the mean
    *,
    levels: Sequence[float] = PERCENT,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the calibration curve of each method and its miscalibration area.

    How many targets lie below each predicted quantile, against how many should: on the diagonal
    if calibrated. See `metrics.calibration_curve` and `metrics.miscalibration_area`.

    Examples:
        >>> mean, var = torch.zeros(50), torch.ones(50)
        >>> ax = hs.plots.reliability((mean, var), torch.linspace(-2, 2, 50))
        >>> len(ax.lines) > 0
        True
    """
    truth = tensor("target", target)
    curves = {}
    for name, entry in by_name(predicted).items():
        data = *mean_and_var(entry), truth
        area = metrics.miscalibration_area(*data, levels=levels)
        curves[name] = metrics.calibration_curve(*data, levels=levels), area
    ax, _ = prepared(ax, size=(4.6, 4.2))
    diagonal(ax, 0, 1, "calibrated")
    for index, (name, (curve, area)) in enumerate(curves.items()):
        promised, observed = (column.numpy() for column in curve)
        series(ax, promised, observed, index, titled(name, f"area {area:.3f}"))
        if len(curves) == 1:
            fill(ax, promised, promised, observed, index)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return finish(ax, "predicted probability", "share of targets below the quantile")


def confidence(
    probabilities: object,  # (batch, classes, ...), or several by name
    target: object,  # (batch, ...), class indices
    *,
    bins: int = 15,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the accuracy against the confidence of each method, and its ECE.

    Bins of equal width, empty ones left out; larger points have more predictions. See
    `metrics.reliability_curve` and `metrics.ece`.

    Examples:
        >>> p, target = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])
        >>> ax = hs.plots.confidence(p, target)
        >>> ax.get_xlabel()
        'confidence'
    """
    truth = torch.as_tensor(target).detach().cpu()
    curves = {}
    for name, entry in by_name(probabilities).items():
        data = tensor("probabilities", entry), truth
        curves[name] = metrics.reliability_curve(*data, bins=bins), metrics.ece(*data, bins=bins)
    ax, theme = prepared(ax, size=(4.6, 4.2))
    diagonal(ax, 0, 1, "calibrated")
    for index, (name, (curve, error)) in enumerate(curves.items()):
        x, y, share = (column[curve.fraction > 0].numpy() for column in curve)
        series(ax, x, y, index, titled(name, f"ECE {error:.3f}"))
        mark = theme.mark(index)
        look = {"marker": mark.marker, "color": mark.color, "zorder": 3, "clip_on": False}
        ax.scatter(x, y, s=20 + 180 * share, **look)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    return finish(ax, "confidence", "accuracy")


def std_vs_error(
    predicted: Predicted | Mapping[str, Predicted],
    target: object,  # like the mean
    *,
    bins: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the RMSE of each bin against its predicted std; the diagonal is right.

    Bins hold equally many predictions, sorted by variance; below the diagonal the method is less
    sure than it could be, above it too sure. See `metrics.spread_curve` and `metrics.ence`.

    Examples:
        >>> mean, var = torch.zeros(50), torch.rand(50)
        >>> ax = hs.plots.std_vs_error((mean, var), torch.linspace(-2, 2, 50), bins=5)
        >>> len(ax.lines) > 0
        True
    """
    truth = tensor("target", target)
    curves = {
        name: metrics.spread_curve(*mean_and_var(entry), truth, bins=bins)
        for name, entry in by_name(predicted).items()
    }
    ax, _ = prepared(ax, size=(4.6, 4.2))
    values = torch.cat([column for curve in curves.values() for column in curve]).numpy()
    ends = equal_scales(ax, values, log=bool(values.max() > 20 * values.min()))
    diagonal(ax, *ends, "as sure as it should be")
    for index, (name, (std, rmse)) in enumerate(curves.items()):
        series(ax, std.numpy(), rmse.numpy(), index, name or "measured")
    least, rest = divmod(truth.numel(), bins)
    title = f"{bins} bins of {least}{f' or {least + 1}' if rest else ''} predictions"
    return finish(ax, "predicted std", "RMSE in the bin", title=title)


def sparsification(
    error: object,  # (...), not negative, or several by name
    uncertainty: object,  # like the error, or several by name
    *,
    normalize: bool = True,
    points: int = 1000,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the mean error of what remains, the oracle, and the area between them (AUSE).

    See `metrics.sparsification_curve` and `metrics.ause`.

    Args:
        error: Error of each prediction, such as |target - mean|; 1 where a class is wrong. One
            for all methods, or a dict with the methods' names.
        uncertainty: Variance, or anything that rises with it.
        normalize: Divides by the mean error, so that all curves begin at 1.
        points: How many points of a curve are drawn at most, evenly spaced.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> ax = hs.plots.sparsification(error, std)
        >>> len(ax.lines) > 0
        True
    """
    methods, shared = by_name(uncertainty), not isinstance(error, Mapping)
    errors = dict.fromkeys(methods, error) if shared else by_name(error)
    if set(errors) != set(methods):
        raise ValueError(
            f"`error` has the names {list(errors)} and `uncertainty` has {list(methods)}; give "
            "both for every method, or one error for all."
        )
    curves = {}
    for name, ranking in methods.items():
        pair = tensor("error", errors[name]), tensor("uncertainty", ranking)
        curve = metrics.sparsification_curve(*pair, normalize=normalize)
        area = metrics.ause(*pair, normalize=normalize)
        curves[name] = *thinned(*(column.numpy() for column in curve), most=points), area
    ax, theme = prepared(ax)
    for index, (name, (removed, remaining, oracle, area)) in enumerate(curves.items()):
        series(ax, removed, remaining, index, titled(name, f"AUSE {area:.3g}"))
        # The best possible order; it is the same for all methods if their error is.
        if index == 0 or not shared:
            color = theme.ink if shared else theme.mark(index).color
            look = {"color": color, "linewidth": 1, "linestyle": (0, (1, 1))}
            ax.plot(removed, oracle, **look, label=None if index else "oracle")
        if len(curves) == 1:
            fill(ax, removed, oracle, remaining, index)
    ax.set(xlim=(0, 1), ylim=(0, None))
    unit = " / mean error" if normalize else ""
    return finish(ax, "share of the most uncertain rejected", f"mean error of the rest{unit}")


def consistency(
    squared: object,  # (steps,) or (runs, steps), or several by name
    dof: int,
    *,
    times: object = None,  # (steps,)
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the NEES or NIS at every step, averaged over runs, and its chi-square band.

    A consistent filter is inside the band at `level` of the steps, and below it is less sure than
    it could be, above it too sure. See `metrics.squared_mahalanobis` and `metrics.chi_square_band`.

    Args:
        squared: Squared Mahalanobis distances of each run and step; runs must be independent.
        dof: Length of an error vector, on average their squared distance.
        times: When the steps were; by default they are counted.
        level: The probability inside the band.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> squared = torch.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 4.0]])  # (runs, steps)
        >>> ax = hs.plots.consistency(squared, dof=2)
        >>> len(ax.lines) > 0
        True
    """
    runs = {name: tensor("squared", value) for name, value in by_name(squared).items()}
    for value in runs.values():
        if value.dim() not in (1, 2) or value.numel() == 0 or bool((value < 0).any()):
            raise ValueError(
                f"`squared` has shape {tuple(value.shape)}; give squared distances, not negative, "
                "of shape (steps,) or (runs, steps)."
            )
    shapes = {tuple(torch.atleast_2d(value).shape) for value in runs.values()}
    if len(shapes) > 1:
        raise ValueError(f"The runs have the shapes {sorted(shapes)}; all must have the same.")
    ((count, steps),) = shapes
    means = {name: torch.atleast_2d(value).mean(0).numpy() for name, value in runs.items()}
    low, high = metrics.chi_square_band(dof, count=count, level=level)
    x = np.arange(float(steps)) if times is None else array("times", times, "(n,)")
    same_length(times=x, squared=np.empty(steps))
    ax, theme = prepared(ax)
    name = f"{100 * level:g} % band"
    ax.axhspan(low, high, facecolor=theme.muted, alpha=0.45, linewidth=0, label=name)
    dashes = {"color": theme.ink, "linewidth": 1, "linestyle": (0, (2, 2))}
    ax.axhline(dof, **dashes, label=f"consistent: {dof}")
    for index, (name, mean) in enumerate(means.items()):
        inside = float(((low <= mean) & (mean <= high)).mean())
        series(ax, x, mean, index, titled(name, f"{100 * inside:.0f} % of steps inside"))
    # Logarithmic where one method is so far off that the band would vanish.
    values = np.concatenate(list(means.values()))
    if values.max() > 10 * high and values.min() > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    over = f", mean of {count} runs" if count > 1 else ""
    return finish(ax, "step" if times is None else "time", f"normalized error squared{over}")
