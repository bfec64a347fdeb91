"""Clamps: values cut off at one end or at both."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import in_float32, pointwise
from howsure.moments.numerics import FURTHEST, cdf, pdf, ratio, rectify, roots
from howsure.moments.rule import Draw, Sample, one_of_each_shape, rule_of
from howsure.moments.value import Moments


def _limits(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), -0.5, 1.0)
    yield Sample(draw.moments(3, 4), min=0.2)
    yield Sample(draw.moments(3, 4), max=0.3)
    yield Sample(draw.moments(3, 4), min=-draw.positive(4), max=draw.positive(3, 1))


@rule_of("clamp", "clip", samples=_limits, pointwise=True)
def clamp(
    input: Moments, min: float | Tensor | None = None, max: float | Tensor | None = None
) -> Moments:
    """E = clamp(mean) + std [n(a) - n(b)], Var = var [R(a) - Phi(b) - m(b) m(-b) + 2 m(-a) m(b)].

    a = (mean - lo) / std and b = (mean - hi) / std, mirrored so that the mean is in the lower
    half; n(a) = m(-|a|). With one limit only it is a shifted rectifier.

    Assumes: independent elements and constant limits; exact.

    Source: Cov(relu(x - p), relu(x - q)) = var [Phi(b_q) - m(-b_p) m(b_q)] for p <= q.
    """
    if isinstance(min, Moments) or isinstance(max, Moments):
        raise NoRuleError(
            "`clamp` has a rule for constant limits; use `torch.maximum`.", can_fall_back=True
        )
    return in_float32(lambda mean, var: _clamped(mean, var, min, max), input)


def _clamped(
    mean: Tensor, var: Tensor, low: float | Tensor | None, high: float | Tensor | None
) -> Moments:
    shift, out = _cut(mean, var, _limit(low, -math.inf, mean), _limit(high, math.inf, mean))
    # Of one type: torch's export to ONNX fails on a whole number beside a fraction.
    low, high = (float(each) if isinstance(each, int) else each for each in (low, high))
    return Moments(mean.clamp(low, high) + shift, out)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _limit(value: float | Tensor | None, default: float, like: Tensor) -> Tensor:
    value = default if value is None else value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _cut(mean: Tensor, var: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """How far the noise moves the mean of x cut off at both ends, and the variance."""
    low = torch.minimum(low, high)  # as torch has it: the upper limit wins
    std, divisor = roots(var)
    below, above = mean - low, high - mean
    near, far = torch.minimum(below, above), torch.maximum(below, above)
    # Beyond that nothing depends on the distance any more, be it infinite.
    a, b = (ratio(side, divisor).clamp(-FURTHEST, FURTHEST) for side in (near, -far))
    lower, upper = rectify(a), rectify(b)
    lift = std * (lower.mean - a.clamp(min=0) - upper.mean + b.clamp(min=0))
    unit_var = (
        lower.var
        - upper.probability
        - upper.mean * upper.mirrored_mean
        + 2 * lower.mirrored_mean * upper.mean
    )
    width = ratio((high - low).expand(mean.shape), divisor).clamp(max=2 * FURTHEST)
    wide = torch.where(width < _NARROW, _narrow_unit_var(a, width), unit_var).clamp(min=0)
    return torch.where(below <= above, lift, -lift), var * wide


# Below this window, in standard deviations, the closed form loses its digits in float32.
_NARROW = 0.1


def _narrow_unit_var(a: Tensor, width: Tensor) -> Tensor:
    """Variance over var when the window is narrow, by Taylor's series of Phi.

    In units of the window w about its middle c: mean q = Phi(c) - w**2 c phi(c) / 24 and variance
    q (1 - q) - w phi(c) / 6 [1 + w**2 (c**2 - 1) / 40], with an error of order w**4.
    """
    middle, square = a - width / 2, width.square()
    density = pdf(middle)
    q = cdf(middle) - square * middle * density / 24
    curvature = density * width / 6 * (1 + square * (middle.square() - 1) / 40)
    return square * (q * (1 - q) - curvature)


def _default_window(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), -0.2, 0.7)


@pointwise("hardtanh", first=F.hardtanh, samples=_default_window)
def hardtanh(
    mean: Tensor, var: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Moments:
    """As `clamp(x, min_val, max_val)`."""
    return _clamped(mean, var, min_val, max_val)


@pointwise("relu6", first=F.relu6)
def relu6(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `clamp(x, 0, 6)`."""
    return _clamped(mean, var, 0.0, 6.0)


@pointwise("hardsigmoid", first=F.hardsigmoid)
def hardsigmoid(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `clamp(x, -3, 3) / 6 + 1/2`."""
    shift, cut = _cut(mean, var, *(_limit(end, 0.0, mean) for end in (-3.0, 3.0)))
    return Moments(F.hardsigmoid(mean) + shift / 6, cut / 36)


@rule_of("clamp_min", samples=lambda draw: [Sample(draw.moments(3, 4), 0.1)], pointwise=True)
def clamp_min(input: Moments, min: float | Tensor) -> Moments:
    """As `clamp(x, min=min)`."""
    return clamp(input, min=min)


@rule_of("clamp_max", samples=lambda draw: [Sample(draw.moments(3, 4), 0.1)], pointwise=True)
def clamp_max(input: Moments, max: float | Tensor) -> Moments:
    """As `clamp(x, max=max)`."""
    return clamp(input, max=max)
