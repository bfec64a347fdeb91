"""Functions that a Gaussian leaves the domain of, or meets a pole of: first order in the noise.

The one other linearisation, `howsure.moments.fallback.linearised`, serves operations of which
nothing is known, by automatic differentiation along directions of the noise. Here the derivative is
written out: it costs one pass, and works inside `vmap` and exported programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from howsure.moments.families import bounded, pointwise
from howsure.moments.rule import LINEARISED, Draw, Sample, Samples, rule_of
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype


def _around(centre: float) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(Moments(centre + 0.1 * draw.positive(3, 4), 1e-4 * draw.positive(3, 4)))

    return samples


def _register(
    function: Callable[..., Tensor],
    derivative: Callable[[Tensor], Tensor],
    *names: str,
    centre: float,
) -> None:
    """Registers f with its derivative; samples lie around `centre`, well inside the domain."""

    @pointwise(*names, fidelity=LINEARISED, samples=_around(centre), error=0.02)
    def linearised(mean: Tensor, var: Tensor) -> Moments:
        """E = f(m), Var = f'(m)**2 v.

        Assumes: noise that is small against the distance to the edge of the domain or the pole,
        beyond which the Gaussian has no moments.

        Source: Taylor expansion.
        """
        return _first_order(function(mean), derivative(mean), var)


def _first_order(value: Tensor, slope: Tensor, var: Tensor) -> Moments:
    """slope**2 var; an infinite slope, at the edge of the domain, leaves no noise without noise."""
    slope = bounded(slope)
    return Moments(value, bounded(bounded(slope * var) * slope))


def _erfinv_slope(x: Tensor) -> Tensor:
    return math.sqrt(math.pi) / 2 * torch.exp(torch.erfinv(x).square())


_register(torch.tan, lambda x: 1 + torch.tan(x).square(), "tan", centre=0.5)
_register(torch.asin, lambda x: torch.rsqrt(1 - x.square()), "asin", "arcsin", centre=0.3)
_register(torch.acos, lambda x: torch.rsqrt(1 - x.square()), "acos", "arccos", centre=0.3)
_register(torch.acosh, lambda x: torch.rsqrt(x.square() - 1), "acosh", "arccosh", centre=2.0)
_register(torch.atanh, lambda x: 1 / (1 - x.square()), "atanh", "arctanh", centre=0.3)
_register(torch.erfinv, _erfinv_slope, "erfinv", centre=0.3)


def _probabilities(draw: Draw) -> Iterable[Sample]:
    steady = Moments(0.4 + 0.1 * draw.positive(3, 4), 1e-4 * draw.positive(3, 4))
    yield Sample(steady)
    yield Sample(steady, eps=1e-3)


@pointwise("logit", fidelity=LINEARISED, samples=_probabilities, error=0.02)
def logit(mean: Tensor, var: Tensor, eps: float | None = None) -> Moments:
    """E = logit(m), Var = v / (m (1 - m))**2; 0 where `eps` clamps the mean.

    Assumes: noise that is small against the distance to 0 and 1.

    Source: Taylor expansion.
    """
    out = _first_order(torch.logit(mean, eps), 1 / (mean * (1 - mean)), var)
    if eps is None:
        return out
    inside = (mean > eps) & (mean < 1 - eps)
    return Moments(out.mean, torch.where(inside, out.var, torch.zeros_like(var)))


def _angles(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4, mean=3.0, std=1e-2), draw.moments(3, 4, mean=3.0, std=1e-2))
    yield Sample(draw.moments(3, 4, mean=3.0, std=1e-2), draw.positive(4))


@rule_of("atan2", "arctan2", fidelity=LINEARISED, samples=_angles, error=0.02)
def atan2(input: object, other: object) -> Moments:
    """E = atan2(m1, m2), Var = (m2**2 v1 + m1**2 v2) / (m1**2 + m2**2)**2, at most pi**2 / 3.

    Assumes: independent operands, and noise that is small against their length.

    Source: Taylor expansion.
    """
    mean = torch.atan2(mean_of(input), mean_of(other))
    dtype = variance_dtype(mean.dtype)
    y, x = mean_of(input).to(dtype), mean_of(other).to(dtype)
    length = torch.hypot(y, x)
    apart = torch.where(length == 0, 1.0, length)
    shares = [
        _first_order(mean, side / apart / apart, torch.as_tensor(var_of(operand))).var
        for side, operand in ((x, input), (y, other))
    ]
    noisy = torch.as_tensor(var_of(input) + var_of(other) > 0)
    var = torch.where((length == 0) & noisy, _ANY_ANGLE, bounded(shares[0] + shares[1]))
    return Moments(mean, var.clamp(max=_ANY_ANGLE).expand(mean.shape))


# The variance of an angle of which nothing is known.
_ANY_ANGLE = math.pi**2 / 3
