"""Clamps: values cut off at one end or at both."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.families import in_float32
from howsure.moments import Moments
from howsure.normal import cdf, rectify, standardise
from howsure.registry import EXACT, rule, spellings
from howsure.rules.rectifiers import bent
from howsure.samples import Draw, Sample, one_of_each_shape


def _limits(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), -0.5, 1.0)
    yield Sample(draw.moments(3, 4), min=0.2)
    yield Sample(draw.moments(3, 4), max=0.3)
    yield Sample(draw.moments(3, 4), min=-draw.positive(4), max=draw.positive(3, 1))


@rule(*spellings("clamp", "clip"), name="clamp", fidelity=EXACT, samples=_limits, pointwise=True)
def clamp(
    input: Moments, min: float | Tensor | None = None, max: float | Tensor | None = None
) -> Moments:
    """E = lo + std [m(a) - m(b)], Var = var [R(a) - Phi(b) - m(b) m(-b) + 2 m(-a) m(b)].

    a = (mean - lo) / std and b = (mean - hi) / std, mirrored so that the mean is in the lower
    half. With one limit only it is a shifted rectifier.

    Assumes: independent elements and constant limits; exact.

    Source: Cov(relu(x - p), relu(x - q)) = var [Phi(b_q) - m(-b_p) m(b_q)] for p <= q.
    """
    return in_float32(lambda x: _clamped(*x, min, max), input)


def _clamped(
    mean: Tensor, var: Tensor, low: float | Tensor | None, high: float | Tensor | None
) -> Moments:
    if high is None:
        assert low is not None
        above = bent(mean - low, var, 0.0)
        return Moments(above.mean + low, above.var)
    if low is None:
        below = bent(high - mean, var, 0.0)
        return Moments(high - below.mean, below.var)
    return _between(mean, var, torch.as_tensor(low).to(mean), torch.as_tensor(high).to(mean))


def _between(mean: Tensor, var: Tensor, low: Tensor, high: Tensor) -> Moments:
    """Moments of x cut off at both ends."""
    upper_half = 2 * mean > low + high
    mirrored = torch.where(upper_half, low + high - mean, mean)
    a, std, sure = standardise(mirrored - low, var)
    b, _, surely = standardise(mirrored - high, var)
    # At one end with next to no noise, the other end is too far away to square the distance.
    certain = sure | surely
    lower, upper = rectify(a), rectify(b)
    cut = low + std * (lower.mean - upper.mean)
    cut = torch.minimum(torch.maximum(torch.where(upper_half, low + high - cut, cut), low), high)
    unit_var = (
        lower.var
        - upper.probability
        - upper.mean * upper.mirrored_mean
        + 2 * lower.mirrored_mean * upper.mean
    )
    wide = torch.where((a - b) < _NARROW, _narrow_unit_var(a, b), unit_var).clamp(min=0)
    inside = (mean > low) & (mean < high)
    plain_var = torch.where(inside, var, torch.zeros_like(var))
    return Moments(
        torch.where(certain, torch.minimum(torch.maximum(mean, low), high), cut),
        torch.where(certain, plain_var, var * wide),
    )


# Below this window, in standard deviations, the closed form loses its digits in float32.
_NARROW = 0.02


def _narrow_unit_var(a: Tensor, b: Tensor) -> Tensor:
    """Variance over var when the window is narrow: x is below, above, or uniform in it.

    In units of the window w = a - b: mean q = P(above) + P(inside) / 2 and variance
    q (1 - q) - P(inside) / 6, with an error of order w**2.
    """
    above, inside = cdf(b), cdf(a) - cdf(b)
    q = above + inside / 2
    return (a - b).square() * (q * (1 - q) - inside / 6)


def _default_window(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), -0.2, 0.7)


@rule(
    F.hardtanh,
    *(spelling for spelling in spellings("hardtanh") if spelling is not F.hardtanh),
    name="hardtanh",
    fidelity=EXACT,
    samples=_default_window,
    pointwise=True,
)
def hardtanh(
    input: Moments, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Moments:
    """As `clamp(x, min_val, max_val)`.

    Assumes: independent elements; exact.

    Source: `clamp`.
    """
    return clamp(input, min_val, max_val)


@rule(
    F.relu6,
    *(spelling for spelling in spellings("relu6") if spelling is not F.relu6),
    name="relu6",
    fidelity=EXACT,
    samples=one_of_each_shape,
    pointwise=True,
)
def relu6(input: Moments, inplace: bool = False) -> Moments:
    """As `clamp(x, 0, 6)`.

    Assumes: independent elements; exact.

    Source: `clamp`.
    """
    return clamp(input, 0.0, 6.0)


@rule(
    F.hardsigmoid,
    *(spelling for spelling in spellings("hardsigmoid") if spelling is not F.hardsigmoid),
    name="hardsigmoid",
    fidelity=EXACT,
    samples=one_of_each_shape,
    pointwise=True,
)
def hardsigmoid(input: Moments, inplace: bool = False) -> Moments:
    """As `clamp(x / 6 + 1/2, 0, 1)`.

    Assumes: independent elements; exact.

    Source: `clamp`.
    """
    return clamp(Moments(input.mean / 6 + 0.5, input.var / 36), 0.0, 1.0)


@rule(
    *spellings("clamp_min"),
    name="clamp_min",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(3, 4), 0.1)],
    pointwise=True,
)
def clamp_min(input: Moments, min: float | Tensor) -> Moments:
    """As `clamp(x, min=min)`.

    Assumes: independent elements and a constant limit; exact.

    Source: `clamp`.
    """
    return clamp(input, min=min)


@rule(
    *spellings("clamp_max"),
    name="clamp_max",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(3, 4), 0.1)],
    pointwise=True,
)
def clamp_max(input: Moments, max: float | Tensor) -> Moments:
    """As `clamp(x, max=max)`.

    Assumes: independent elements and a constant limit; exact.

    Source: `clamp`.
    """
    return clamp(input, max=max)
