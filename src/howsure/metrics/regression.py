"""How good predicted numbers and vectors are, and whether their variances are calibrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import bin_count, entries, positive_variance, probability, vectors
from howsure.metrics.ranks import binned_means
from howsure.metrics.streaming import Scatter, Sums, mean_over, summary_over, values_over
from howsure.moments.numerics import pdf
from howsure.student import central_reach, student_crps, student_nll

PERCENT = tuple(k / 100 for k in range(101))
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
Direction = Literal["true||predicted", "predicted||true"]


@mean_over(entries, torch.sqrt)
def rmse(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Root mean squared error over all entries: sqrt(mean((target - mean)^2)).

    Examples:
        >>> hs.metrics.rmse(torch.zeros(2), torch.tensor([1.0, -7.0]))
        tensor(5., dtype=torch.float64)
    """
    return (target - mean).square()


@mean_over(entries)
def mae(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean absolute error over all entries: mean(|target - mean|).

    Examples:
        >>> hs.metrics.mae(torch.zeros(2), torch.tensor([1.0, -3.0]))
        tensor(2., dtype=torch.float64)
    """
    return (target - mean).abs()


def _explained(moments: Scatter) -> Tensor:
    residual, total = moments.scatter.flatten()
    if total == 0:
        raise ValueError(
            "`target` is constant, so there is no variance to explain; report `rmse` instead."
        )
    return 1 - residual / total


@summary_over(entries, Scatter, _explained)
def explained_variance(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Explained variance (EVA): 1 - Var(target - mean) / Var(target).

    Pooled over all entries: give one output at a time if outputs differ in scale. A constant
    offset of the predictions does not lower it. As in the code of Loquercio et al. (2020), Table I.

    Examples:
        >>> target = torch.tensor([-1.0, 1.0])
        >>> hs.metrics.explained_variance(0.5 * target, target)
        tensor(0.7500, dtype=torch.float64)
    """
    return torch.stack([target - mean, target]).unsqueeze(-1)


@mean_over(vectors)
def epe(
    mean: Tensor,  # (..., d, ...), d at `dim`
    target: Tensor,  # like mean
    *,
    dim: int = 1,
    mask: Tensor | None = None,  # (..., ...) or (..., 1, ...), bool
    weight: Tensor | None = None,  # like mask
) -> Tensor:
    """Mean end point error: the Euclidean length of target - mean along `dim`.

    Examples:
        >>> flow, target = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
        >>> hs.metrics.epe(flow, target)
        tensor(5., dtype=torch.float64)
    """
    return (target - mean).norm(dim=1)


def _kl(fitted: Scatter) -> Tensor:
    """KL(p||q) = 1/2 [tr(Q^-1 P) + d^T Q^-1 d - k + log det Q / det P], d = mean_p - mean_q."""
    covariance = fitted.scatter / fitted.weight
    factors, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factors.diagonal(dim1=1, dim2=2).square()
    # A singular matrix leaves a pivot of rounding errors, a few eps of its diagonal.
    rounding = 64 * torch.finfo(covariance.dtype).eps * covariance.diagonal(dim1=1, dim2=2)
    if failed.any() or (pivots <= rounding).any():
        raise ValueError(
            "The vectors do not span all their components, so a fitted Gaussian has no density; "
            "give more vectors, or leave out a component that is constant or follows from others."
        )
    p, q = factors
    shift = (fitted.mean[0] - fitted.mean[1]).unsqueeze(-1)
    # |L^-1 A|^2 is tr(Q^-1 A A^T) for Q = L L^T.
    whitened = torch.linalg.solve_triangular(q, torch.cat([p, shift], dim=1), upper=False)
    log_ratio = 2 * (q.diagonal().log() - p.diagonal().log()).sum()
    return 0.5 * (whitened.square().sum() - len(shift) + log_ratio)


@summary_over(vectors, Scatter, _kl)
def kl_of_fitted_gaussians(
    mean: Tensor,  # (..., d, ...), d at `dim`
    target: Tensor,  # like mean
    *,
    direction: Direction = "true||predicted",
    dim: int = 1,
    mask: Tensor | None = None,  # (..., ...) or (..., 1, ...), bool
    weight: Tensor | None = None,  # like mask
) -> Tensor:
    """KL divergence, in nats, between Gaussians fitted to the true and the predicted vectors.

    Both have a full covariance, fitted by maximum likelihood. Used for flow by Loquercio et al.
    (2020), Table II, who state neither the direction nor the form of the covariance.

    Args:
        mean: Predicted field.
        target: True field.
        direction: `"true||predicted"` is KL(true||predicted), large where the predictions lack
            what truth has; `"predicted||true"` is large where they have what truth lacks.
        dim: Dimension of the vector components.
        mask: False vectors do not count and may be NaN.
        weight: How much each vector counts.

    Examples:
        >>> target = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]])
        >>> round(float(hs.metrics.kl_of_fitted_gaussians(target, target)), 3)
        0.0
    """
    if direction not in ("true||predicted", "predicted||true"):
        raise ValueError(
            f"`direction` is {direction!r}; choose 'true||predicted' or 'predicted||true'."
        )
    pair = [target, mean] if direction == "true||predicted" else [mean, target]
    return torch.stack(pair)


@mean_over(entries)
def nll(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    include_constant: bool = False,
    floor: float = 0.0,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean negative log-likelihood: 1/2 log var + (target - mean)^2 / (2 var).

    With `degrees_of_freedom` that of a Student-t of this variance, as `p.degrees_of_freedom` has it
    after a fit.

    Loquercio et al. (2020), Eq. 12, whose sigma_tot is a variance.

    Args:
        mean: Predicted mean.
        var: Predicted variance, not a standard deviation.
        target: True value.
        include_constant: Adds 1/2 log(2 pi), for the density itself.
        floor: Variances below are raised to it. The default raises none, and a variance of 0 is
            an error, since its likelihood is infinite. State the floor with the number.
        degrees_of_freedom: Of a Student-t; infinity, the default, for a Gaussian.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.

    Examples:
        >>> mean, var, target = torch.zeros(1), torch.ones(1), torch.tensor([2.0])
        >>> hs.metrics.nll(mean, var, target), hs.metrics.nll(mean, 4 * var, target)
        (tensor(2., dtype=torch.float64), tensor(1.1931, dtype=torch.float64))
    """
    var = positive_variance(var, floor)
    score = student_nll((target - mean).square(), var, _check_degrees(degrees_of_freedom))
    return score + HALF_LOG_2PI if include_constant else score


@mean_over(entries)
def crps(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean continuous ranked probability score: s [z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)].

    With s = sqrt(var) and z = (target - mean) / s; in units of the target. A variance of 0 gives
    the absolute error. With `degrees_of_freedom` that of a Student-t of this variance. Gneiting et
    al. (2005), "Calibrated probabilistic forecasting".

    Examples:
        >>> hs.metrics.crps(torch.zeros(1), torch.ones(1), torch.zeros(1))
        tensor(0.2337, dtype=torch.float64)
    """
    error, std = target - mean, var.sqrt()
    if _check_degrees(degrees_of_freedom) < math.inf:
        return student_crps(error, var, degrees_of_freedom)
    # tiny protects 0 / 0; an infinite z has the right limit below.
    z = error / std.clamp(min=torch.finfo(std.dtype).tiny)
    return error * torch.erf(z * math.sqrt(0.5)) + std * (2 * pdf(z) - 1 / math.sqrt(math.pi))


@mean_over(entries)
def interval_score(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    level: float = 0.95,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean interval score of the central interval: width + 2 / (1 - level) * distance outside.

    In units of the target. Gneiting & Raftery (2007), "Strictly proper scoring rules", with
    alpha = 1 - level.

    Examples:
        >>> mean, var, target = torch.zeros(1), torch.ones(1), torch.zeros(1)
        >>> hs.metrics.interval_score(mean, var, target)  # 2 x 1.96: the width alone
        tensor(3.9199, dtype=torch.float64)
    """
    half_width = _half_widths(var, level, degrees_of_freedom)
    outside = ((target - mean).abs() - half_width).clamp(min=0)
    return 2 * half_width + 2 / (1 - level) * outside


@mean_over(entries)
def coverage(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    level: float = 0.95,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Fraction of targets inside the central interval of `level`; should be `level`.

    Examples:
        >>> mean, var = torch.zeros(4), torch.ones(4)
        >>> hs.metrics.coverage(mean, var, torch.tensor([-1.0, 0.0, 1.0, 3.0]))
        tensor(0.7500, dtype=torch.float64)
    """
    return ((target - mean).abs() <= _half_widths(var, level, degrees_of_freedom)).to(var)


def _half_widths(var: Tensor, level: float, degrees_of_freedom: float) -> Tensor:
    """Half the width of the central interval that holds `level` of each Gaussian or Student-t."""
    reach = central_reach(probability("level", level), _check_degrees(degrees_of_freedom))
    return var.sqrt() * reach


def _check_degrees(degrees_of_freedom: float) -> float:
    if not degrees_of_freedom > 2:
        raise ValueError(
            f"`degrees_of_freedom` must be above 2, where a Student-t has a variance, not "
            f"{degrees_of_freedom!r}."
        )
    return degrees_of_freedom


@mean_over(entries, torch.sqrt)
def sharpness(
    var: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Typical predicted standard deviation: sqrt(mean(var)), in units of the target.

    Lower is better among methods that are equally calibrated. Kuleshov et al. (2018)
    take no root.

    Examples:
        >>> hs.metrics.sharpness(torch.tensor([1.0, 7.0]))
        tensor(2., dtype=torch.float64)
    """
    return var


class CalibrationCurve(NamedTuple):
    """Promised against observed probabilities; on the diagonal if calibrated.

    Examples:
        >>> mean, var = torch.zeros(3), torch.ones(3)
        >>> target = torch.tensor([-1.0, 0.0, 1.0])
        >>> curve = hs.metrics.calibration_curve(mean, var, target, levels=(0.1, 0.9))
        >>> curve.levels
        tensor([0.1000, 0.9000], dtype=torch.float64)
    """

    levels: Tensor  # (levels,)
    observed: Tensor  # (levels,)


def _curve(sums: Sums) -> CalibrationCurve:
    return CalibrationCurve(*sums.mean())


def _area(sums: Sums) -> Tensor:
    levels, observed = sums.mean()
    gap = observed - levels
    left, right = gap[:-1], gap[1:]
    height = (left.abs() + right.abs()) / 2
    # Where the curve crosses the diagonal, two triangles instead of a trapezoid.
    crossing = left * right < 0
    triangles = (left.square() + right.square()) / (4 * torch.where(crossing, height, 1.0))
    return (levels.diff() * torch.where(crossing, triangles, height)).sum()


def _targets_below(standardized: tuple[Tensor, Tensor], weight: Tensor) -> Sums:
    """Sums whose mean is the levels and the observed fractions below their quantiles."""
    z, levels = standardized
    place = torch.bucketize(z, torch.special.ndtri(levels))
    counts = torch.bincount(place, weights=weight, minlength=len(levels) + 1)
    total = weight.sum()
    return Sums(torch.stack([levels * total, counts.cumsum(0)[:-1]]), total)


def _standardized(
    mean: Tensor, var: Tensor, target: Tensor, levels: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(target - mean) / std, and the levels as a tensor."""
    z = (target - mean) / positive_variance(var).sqrt()
    promised = torch.as_tensor(levels, dtype=z.dtype, device=z.device)
    ascending = promised.dim() == 1 and bool((promised.diff() > 0).all())
    if not (ascending and len(promised) > 1 and promised[0] >= 0 and promised[-1] <= 1):
        raise ValueError("`levels` must be at least two ascending probabilities from 0 to 1.")
    return z, promised


@summary_over(entries, Sums, _curve, _targets_below)
def calibration_curve(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    levels: Sequence[float] = PERCENT,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> tuple[Tensor, Tensor]:
    """Fraction of targets at or below the predicted quantile, for each level.

    observed(p) = mean(target <= mean + sqrt(var) Phi^-1(p)). After Kuleshov et al. (2018).

    Args:
        mean: Predicted mean.
        var: Predicted variance, above 0.
        target: True value.
        levels: Probabilities from 0 to 1, ascending.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.

    Examples:
        >>> mean, var = torch.zeros(3), torch.ones(3)
        >>> target = torch.tensor([-1.0, 0.0, 1.0])
        >>> hs.metrics.calibration_curve(mean, var, target, levels=(0.1, 0.9)).observed
        tensor([0., 1.], dtype=torch.float64)
    """
    return _standardized(mean, var, target, levels)


@summary_over(entries, Sums, _area, _targets_below)
def miscalibration_area(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    levels: Sequence[float] = PERCENT,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> tuple[Tensor, Tensor]:
    """Area between `calibration_curve` and the diagonal: 0 if calibrated, at most 1/2.

    The curve is taken as piecewise linear. As in Tran et al. (2020) and uncertainty-toolbox, there
    with central intervals in place of quantiles.

    Examples:
        >>> mean, var, target = torch.zeros(2), torch.ones(2), torch.full((2,), 9.0)
        >>> hs.metrics.miscalibration_area(mean, var, target)  # all far above
        tensor(0.4950, dtype=torch.float64)
    """
    return _standardized(mean, var, target, levels)


class SpreadCurve(NamedTuple):
    """Promised against observed errors, from the most to the least certain bin.

    Examples:
        >>> mean, var = torch.zeros(4), torch.tensor([1.0, 1.0, 4.0, 4.0])
        >>> target = torch.tensor([1.0, -1.0, 2.0, -2.0])
        >>> curve = hs.metrics.spread_curve(mean, var, target, bins=2)
        >>> curve.std
        tensor([1., 2.], dtype=torch.float64)
    """

    std: Tensor  # (bins,), sqrt(mean variance)
    rmse: Tensor  # (bins,)


@values_over(entries)
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

    Examples:
        >>> mean, var = torch.zeros(4), torch.tensor([1.0, 1.0, 4.0, 4.0])
        >>> target = torch.tensor([1.0, -1.0, 2.0, -2.0])
        >>> hs.metrics.spread_curve(mean, var, target, bins=2).rmse
        tensor([1., 2.], dtype=torch.float64)
    """
    promised, observed = binned_means(var, (target - mean).square(), bin_count(bins, len(var)))
    return SpreadCurve(promised.sqrt(), observed.sqrt())


@values_over(entries)
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

    Examples:
        >>> mean, var = torch.zeros(4), torch.full((4,), 4.0)
        >>> hs.metrics.ence(mean, var, torch.ones(4), bins=1)  # std 2, errors of 1
        tensor(0.5000, dtype=torch.float64)
    """
    std, observed = spread_curve(mean, var, target, bins=bins)
    if (std == 0).any():
        raise ValueError(
            "`var` is 0 in a whole bin, where the error relative to it is undefined; raise it with "
            "`var.clamp(min=...)` and state that floor with the number, or use fewer `bins`."
        )
    return ((std - observed).abs() / std).mean()
