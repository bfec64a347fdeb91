"""Rectifiers: closed forms that never subtract two nearly equal numbers.

With a = mean / std, R(a) = Phi(a) - m(a) m(-a) is the variance of max(N(a, 1), 0), and
Cov(max(x, 0), max(-x, 0)) = -var m(a) m(-a) (Frey & Hinton 1999; `numerics.normal`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import in_float32, pointwise
from howsure.moments.numerics import in_blocks, plus_product, ratio, roots, unit_tail
from howsure.moments.rule import Draw, Sample, one_of_each_shape, rule_of
from howsure.moments.value import Moments


@pointwise("relu", first=F.relu)
def relu(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """E = std m(a), Var = var [Phi(a) - m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999; Loquercio et al. 2020, Eq. 6 and 7.
    """
    return leaky(mean, var, 0.0)


def leaky(mean: Tensor, var: Tensor, slope: float | Tensor) -> Moments:
    """Moments of `x if x > 0 else slope x`."""
    inputs = (mean, var.expand(mean.shape))
    if isinstance(slope, Tensor):
        out = in_blocks(_leaky, *inputs, slope.expand(mean.shape))
    else:
        out = in_blocks(lambda m, v: _leaky(m, v, slope), *inputs)
    return Moments(*out)


def _leaky(mean: Tensor, var: Tensor, slope: float | Tensor) -> tuple[Tensor, Tensor]:
    """E = f(mean) + (1 - slope) std n, Var = var [R(a) + slope**2 R(-a) + 2 slope n (t + n)].

    n = m(-|a|) is what the noise lifts the mean by.
    """
    std, divisor = roots(var)
    n, rest, reach, step = unit_tail(ratio(mean, divisor))
    if isinstance(slope, float) and slope == 0.0:
        unit_var = plus_product(step, n, plus_product(rest, step, reach, -2))
        return plus_product(mean.clamp(min=0), std, n), var * unit_var
    square = slope * slope
    share = square + (1 - square) * step  # slope**2 below 0, 1 above
    inner = (1 + square) * rest - 2 * reach * share + 2 * slope * (reach - rest)
    plain = torch.maximum(mean, torch.zeros_like(mean)) + slope * mean.clamp(max=0)
    unit_var = (share + n * inner).clamp(min=0)
    return plain + (1 - slope) * (std * n), var * unit_var


def _slopes(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 0.2)
    yield Sample(draw.moments(3, 4), negative_slope=-0.5)


@pointwise("leaky_relu", first=F.leaky_relu, samples=_slopes)
def leaky_relu(
    mean: Tensor, var: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> Moments:
    """E = std [m(a) - k m(-a)], Var = var [R(a) + k**2 R(-a) + 2 k m(a) m(-a)], slope k.

    Assumes: independent elements; exact for any slope.

    Source: Frey & Hinton 1999.
    """
    return leaky(mean, var, float(negative_slope))


def _channel_slopes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3, 4), draw.constant(3))
    yield Sample(draw.moments(5), draw.positive(1))


@rule_of("prelu", samples=_channel_slopes, pointwise=True)
def prelu(
    input: Moments,  # (batch, channels, *)
    weight: Tensor,  # (channels,) or (1,)
) -> Moments:
    """As `leaky_relu`, with one slope for each channel."""
    trailing = max(input.mean.dim() - 2, 0) if weight.numel() > 1 else 0
    slope = weight.to(input.var.dtype).reshape(weight.shape + (1,) * trailing)
    return in_float32(lambda mean, var: leaky(mean, var, slope), input)


@pointwise("abs", "absolute")
def absolute(mean: Tensor, var: Tensor) -> Moments:
    """E = std [m(a) + m(-a)], Var = var [1 - 4 m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: folded normal distribution, Leone, Nelson & Nottingham 1961.
    """
    return leaky(mean, var, -1.0)
