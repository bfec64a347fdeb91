"""How good predicted Gaussians are, in one number: the proper scoring rules. Lower is better."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsure.metrics.checks import entries, positive_variance, probability
from howsure.metrics.streaming import Sums, streamed
from howsure.moments.numerics import pdf
from howsure.student import central_reach, student_crps, student_nll


@streamed(Sums, Sums.mean)
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
) -> Sums:
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
    """
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    constant = 0.5 * math.log(2 * math.pi) if include_constant else 0.0
    squared_error, var = (target - mean).square(), positive_variance(var, floor)
    score = student_nll(squared_error, var, check_degrees(degrees_of_freedom)) + constant
    return Sums.of(score, weight)


def gaussian_nll(residual: Tensor, var: Tensor, include_constant: bool) -> Tensor:
    """Negative log-likelihood of each residual, for variances above 0."""
    constant = 0.5 * math.log(2 * math.pi) if include_constant else 0.0
    return 0.5 * var.log() + residual.square() / (2 * var) + constant


@streamed(Sums, Sums.mean)
def crps(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Mean continuous ranked probability score: s [z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)].

    With s = sqrt(var) and z = (target - mean) / s; in units of the target. A variance of 0 gives
    the absolute error. With `degrees_of_freedom` that of a Student-t of this variance. Gneiting et
    al. (2005), "Calibrated probabilistic forecasting".
    """
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    error, std = target - mean, var.sqrt()
    if check_degrees(degrees_of_freedom) < math.inf:
        return Sums.of(student_crps(error, var, degrees_of_freedom), weight)
    # tiny protects 0 / 0; an infinite z has the right limit below.
    z = error / std.clamp(min=torch.finfo(std.dtype).tiny)
    score = error * torch.erf(z * math.sqrt(0.5)) + std * (2 * pdf(z) - 1 / math.sqrt(math.pi))
    return Sums.of(score, weight)


@streamed(Sums, Sums.mean)
def interval_score(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    level: float = 0.95,
    degrees_of_freedom: float = math.inf,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Mean interval score of the central interval: width + 2 / (1 - level) * distance outside.

    In units of the target. Gneiting & Raftery (2007), "Strictly proper scoring rules", with
    alpha = 1 - level.
    """
    mean, var, target, weight = entries(mask, weight, mean=mean, var=var, target=target)
    half_width = half_widths(var, level, degrees_of_freedom)
    outside = ((target - mean).abs() - half_width).clamp(min=0)
    return Sums.of(2 * half_width + 2 / (1 - level) * outside, weight)


def half_widths(var: Tensor, level: float, degrees_of_freedom: float = math.inf) -> Tensor:
    """Half the width of the central interval that holds `level` of each Gaussian or Student-t."""
    reach = central_reach(probability("level", level), check_degrees(degrees_of_freedom))
    return var.sqrt() * reach


def check_degrees(degrees_of_freedom: float) -> float:
    """The degrees of freedom; an error where a Student-t has no variance."""
    if not degrees_of_freedom > 2:
        raise ValueError(
            f"`degrees_of_freedom` must be above 2, where a Student-t has a variance, not "
            f"{degrees_of_freedom!r}."
        )
    return degrees_of_freedom
