"""Whether errors are as large as a covariance says, all axes together: NEES and NIS.

Both are the mean of e^T C^-1 e. For Gaussian errors e of covariance C it is distributed as
chi-square with d degrees of freedom for each vector, so its mean is d, and the mean of n
independent ones lies in a known band (Bar-Shalom, Li & Kirubarajan 2001, Sec. 5.4).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsure.metrics.checks import ellipsoids, probability
from howsure.metrics.streaming import mean_over


@mean_over(ellipsoids)
def nees(
    mean: Tensor,  # (..., d)
    covariance: Tensor,  # (..., d, d), or variances (..., d)
    target: Tensor,  # (..., d)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean normalized estimation error squared: (target - mean)^T C^-1 (target - mean).

    d if the covariance is right, above it if it is too small. `chi_square_band` says how far from d
    is still chance. Over the steps of one filter, errors follow each other and the band is too
    narrow; take it over independent runs.

    Examples:
        >>> mean, covariance = torch.zeros(1, 2), torch.eye(2)[None]
        >>> hs.metrics.nees(mean, covariance, torch.tensor([[1.0, 2.0]]))  # 1 + 4
        tensor(5., dtype=torch.float64)
    """
    return _mahalanobis(target - mean, covariance)


@mean_over(ellipsoids)
def nis(
    innovation: Tensor,  # (..., d)
    covariance: Tensor,  # (..., d, d), or variances (..., d)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Tensor:
    """Mean normalized innovation squared: y^T S^-1 y for innovations y of a filter.

    d if the filter's noise is right, above it if the noise is stated too small. Needs no truth.
    Innovations of a consistent filter are white, so the band holds over the steps of one run.

    Examples:
        >>> innovation, covariance = torch.tensor([[1.0, 2.0]]), torch.eye(2)[None]
        >>> hs.metrics.nis(innovation, covariance)
        tensor(5., dtype=torch.float64)
    """
    return _mahalanobis(innovation, covariance)


def squared_mahalanobis(
    error: Tensor,  # (..., d)
    covariance: Tensor,  # (..., d, d), or variances (..., d)
) -> Tensor:  # (...)
    """e^T C^-1 e of each error: what `nees` and `nis` average, and `plots.consistency` draws.

    Examples:
        >>> error, covariance = torch.tensor([[1.0, 2.0]]), torch.eye(2)[None]
        >>> hs.metrics.squared_mahalanobis(error, covariance)
        tensor([5.], dtype=torch.float64)
    """
    errors, factors, _ = ellipsoids(None, error=error, covariance=covariance)
    return _mahalanobis(errors, factors).reshape(error.shape[:-1])


def chi_square_band(dof: int, *, count: int = 1, level: float = 0.95) -> tuple[float, float]:
    """The central interval of the mean of `count` independent chi-square values.

    Args:
        dof: Degrees of freedom of each: the length of an error vector.
        count: How many are averaged.
        level: The probability inside.

    Examples:
        >>> low, high = hs.metrics.chi_square_band(3, count=100)
        >>> round(low, 2), round(high, 2)
        (2.54, 3.5)
    """
    tail = (1 - probability("level", level)) / 2
    low, high = (chi_square_quantile(p, dof * count) for p in (tail, 1 - tail))
    return low / count, high / count


def chi_square_quantile(level: float, dof: int) -> float:
    """The value below which a chi-square variable lies with probability `level`.

    By bisection of the regularized incomplete gamma function in log x, on the smaller tail, so that
    extreme levels keep their digits.

    Examples:
        >>> round(hs.metrics.chi_square_quantile(0.95, 1), 2)  # 1.96 squared
        3.84
    """
    probability("level", level)
    if not (isinstance(dof, int) and dof > 0):
        raise ValueError(f"`dof` is {dof}; give a whole number above 0.")
    tail = torch.special.gammainc if level <= 0.5 else torch.special.gammaincc
    wanted, rising = (level, 1) if level <= 0.5 else (1 - level, -1)
    half = torch.tensor(dof / 2, dtype=torch.float64)
    # Below e^-700 is no float64; the upper end has a tail below that of any level.
    low, high = -700.0, math.log(dof + 50 * math.sqrt(dof) + 1500)
    # 64 halvings of this range leave less than a rounding error.
    for _ in range(64):
        middle = (low + high) / 2
        value = float(tail(half, half.new_tensor(math.exp(middle) / 2)))
        low, high = (middle, high) if rising * (value - wanted) < 0 else (low, middle)
    return math.exp((low + high) / 2)


def _mahalanobis(
    errors: Tensor,  # (n, d)
    factors: Tensor,  # (n, d, d), the Cholesky factors that `ellipsoids` makes of covariances
) -> Tensor:  # (n,)
    whitened = torch.linalg.solve_triangular(factors, errors.unsqueeze(-1), upper=False)
    return whitened.square().sum((1, 2))
