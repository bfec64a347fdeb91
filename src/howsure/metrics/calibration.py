"""Whether predicted variances mean what they say: coverage, sharpness, calibration and spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import bin_count, entries, positive_variance
from howsure.metrics.ranks import tied_means
from howsure.metrics.scores import half_widths
from howsure.metrics.streaming import Sums, kept, streamed

PERCENT = tuple(k / 100 for k in range(101))


class CalibrationCurve(NamedTuple):
    """Promised against observed probabilities; on the diagonal if calibrated."""

    levels: Tensor  # (levels,)
    observed: Tensor  # (levels,)


@streamed(Sums, Sums.mean)
def coverage(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    level: float = 0.95,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Fraction of targets inside the central interval of `level`; should be `level`."""
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    inside = (target - mean).abs() <= half_widths(var, level, degrees_of_freedom)
    return Sums.of(inside.to(weight), weight)


@streamed(Sums, Sums.root_mean)
def sharpness(
    var: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Typical predicted standard deviation: sqrt(mean(var)), in units of the target.

    Lower is better among methods that are equally calibrated. Kuleshov et al. (2018)
    take no root.
    """
    return Sums.of(*entries(mask, weight, var=var))


def _as_curve(sums: Sums) -> CalibrationCurve:
    return CalibrationCurve(*sums.mean())


@streamed(Sums, _as_curve)
def calibration_curve(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    levels: Sequence[float] = PERCENT,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Fraction of targets at or below the predicted quantile, for each level.

    observed(p) = mean(target <= mean + sqrt(var) Phi^-1(p)). After Kuleshov et al. (2018).

    Args:
        mean: Predicted mean.
        var: Predicted variance, above 0.
        target: True value.
        levels: Probabilities from 0 to 1, ascending.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.
    """
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    return _below_quantiles((target - mean) / positive_variance(var).sqrt(), weight, levels)


def _area(sums: Sums) -> Tensor:
    levels, observed = sums.mean()
    gap = observed - levels
    left, right = gap[:-1], gap[1:]
    height = (left.abs() + right.abs()) / 2
    # Where the curve crosses the diagonal, two triangles instead of a trapezoid.
    crossing = left * right < 0
    triangles = (left.square() + right.square()) / (4 * torch.where(crossing, height, 1.0))
    return (levels.diff() * torch.where(crossing, triangles, height)).sum()


@streamed(Sums, _area)
def miscalibration_area(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    levels: Sequence[float] = PERCENT,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Area between `calibration_curve` and the diagonal: 0 if calibrated, at most 1/2.

    The curve is taken as piecewise linear. As in Tran et al. (2020) and uncertainty-toolbox, there
    with central intervals in place of quantiles.
    """
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    return _below_quantiles((target - mean) / positive_variance(var).sqrt(), weight, levels)


def _below_quantiles(
    z: Tensor,  # (n,), standardized targets
    weight: Tensor,  # (n,)
    levels: Sequence[float],
) -> Sums:
    """Sums whose mean is the levels and, below them, the observed fractions."""
    promised = torch.as_tensor(levels, dtype=z.dtype, device=z.device)
    ascending = promised.dim() == 1 and bool((promised.diff() > 0).all())
    if not (ascending and len(promised) > 1 and promised[0] >= 0 and promised[-1] <= 1):
        raise ValueError("`levels` must be at least two ascending probabilities from 0 to 1.")
    place = torch.bucketize(z, torch.special.ndtri(promised))
    counts = torch.bincount(place, weights=weight, minlength=len(promised) + 1)
    total = weight.sum()
    return Sums(torch.stack([promised * total, counts.cumsum(0)[:-1]]), total)


class SpreadCurve(NamedTuple):
    """Promised against observed errors, from the most to the least certain bin."""

    std: Tensor  # (bins,), sqrt(mean variance)
    rmse: Tensor  # (bins,)


@kept(entries)
def spread_curve(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    bins: int = 10,
    mask: Tensor | None = None,  # (...), bool
) -> SpreadCurve:
    """Predicted standard deviation and observed RMSE in bins of equal count, sorted by variance.

    Entries of equal variance share their mean squared error, so that their order does not matter.
    After Levi et al. (2022).
    """
    mean, var, target, _ = entries(mask, mean=mean, var=var, target=target)
    var, order = var.sort()
    squared = tied_means(var, (target - mean).square()[order])
    bin_count(bins, len(var))
    means = [torch.stack([part.mean() for part in x.tensor_split(bins)]) for x in (var, squared)]
    return SpreadCurve(means[0].sqrt(), means[1].sqrt())


@kept(entries)
def ence(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    bins: int = 10,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Expected normalized calibration error: mean over bins of |std - rmse| / std.

    See `spread_curve` for the bins. Levi et al. (2022).
    """
    std, observed = spread_curve(mean, var, target, bins=bins, mask=mask)
    if (std == 0).any():
        raise ValueError(
            "`var` is 0 in a whole bin, where the error relative to it is undefined; raise it with "
            "`var.clamp(min=...)` and state that floor with the number, or use fewer `bins`."
        )
    return ((std - observed).abs() / std).mean()
