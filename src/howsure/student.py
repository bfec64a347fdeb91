"""The Student-t distribution of a given variance: quantile, likelihood and CRPS.

With nu degrees of freedom and variance v its scale is sqrt(v (nu - 2) / nu); nu = infinity is the
Gaussian. With x = sqrt(nu) tan(a) its distribution function is an integral over a finite interval,

    F(x) = 1/2 + int_0^a cos(t)^(nu - 1) dt / B(1/2, nu / 2),

which Gauss-Legendre quadrature gives to rounding.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

# Degrees of freedom that are tried: below 3 the variance hardly exists.
DEGREES = (3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0, math.inf)
_NODES = 64


def student_nll(squared_error: Tensor, var: Tensor, nu: float) -> Tensor:
    """Negative log-likelihood of each error, without 1/2 log 2 pi."""
    if nu == math.inf:
        return 0.5 * (var.log() + squared_error / var)
    scale = var * (nu - 2) / nu
    constant = math.lgamma(nu / 2) - math.lgamma((nu + 1) / 2) + 0.5 * math.log(nu / 2)
    return constant + 0.5 * scale.log() + (nu + 1) / 2 * (squared_error / (nu * scale)).log1p()


def best_degrees(squared_error: Tensor, var: Tensor) -> float:
    """The degrees of freedom of least mean NLL."""
    return min(DEGREES, key=lambda nu: float(student_nll(squared_error, var, nu).mean()))


def student_cdf(x: Tensor, nu: float) -> Tensor:
    """The distribution function of the standard Student-t, of scale 1."""
    nodes, weights = (
        torch.from_numpy(rule).to(x) for rule in np.polynomial.legendre.leggauss(_NODES)
    )
    half = (x / math.sqrt(nu)).atan()[..., None] / 2
    integral = (half * weights * (half * (nodes + 1)).cos() ** (nu - 1)).sum(-1)
    return 0.5 + integral / _beta(0.5, nu / 2)


@functools.lru_cache(maxsize=256)
def central_reach(level: float, nu: float) -> float:
    """Half the width, in std, of the central interval that holds `level`."""
    if nu == math.inf:
        return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        x = torch.tensor(math.sqrt(nu) * math.tan(middle), dtype=torch.float64)
        is_below = 2 * float(student_cdf(x, nu)) - 1 < level
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(nu) * math.tan((low + high) / 2) * math.sqrt((nu - 2) / nu)


def student_crps(error: Tensor, var: Tensor, nu: float) -> Tensor:
    """The continuous ranked probability score of each error.

    s [z (2 F(z) - 1) + 2 f(z) (nu + z^2) / (nu - 1)
    - 2 sqrt(nu) / (nu - 1) B(1/2, nu - 1/2) / B(1/2, nu / 2)^2], z = error / s. Source: Jordan,
    Krueger & Lerch (2019), "Evaluating probabilistic forecasts with scoringRules".
    """
    scale = (var * (nu - 2) / nu).sqrt()
    z = error / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    beta = _beta(0.5, nu / 2)
    # f(z) (nu + z^2), in a form that stays finite far away.
    tails = math.sqrt(nu) / beta * (1 + z.square() / nu) ** ((1 - nu) / 2)
    constant = 2 * math.sqrt(nu) / (nu - 1) * _beta(0.5, nu - 0.5) / beta**2
    return error * (2 * student_cdf(z, nu) - 1) + scale * (2 * tails / (nu - 1) - constant)


def _beta(a: float, b: float) -> float:
    return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))
