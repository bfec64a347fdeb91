"""Rectifiers: closed forms that never subtract two nearly equal numbers.

With a = mean / std, R(a) = Phi(a) - m(a) m(-a) is the variance of max(N(a, 1), 0), and
Cov(max(x, 0), max(-x, 0)) = -var m(a) m(-a) (Frey & Hinton 1999; `howsure.normal.rectify`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.families import in_float32
from howsure.moments import Moments
from howsure.normal import Rectified, rectify, standardise
from howsure.registry import EXACT, rule, spellings
from howsure.samples import Draw, Sample, one_of_each_shape


@rule(
    F.relu,
    *(spelling for spelling in spellings("relu") if spelling is not F.relu),
    name="relu",
    fidelity=EXACT,
    samples=one_of_each_shape,
    pointwise=True,
)
def relu(input: Moments, inplace: bool = False) -> Moments:
    """E = std m(a), Var = var [Phi(a) - m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999; Loquercio et al. 2020, Eq. 6 and 7.
    """
    return in_float32(lambda x: bent(*x, 0.0), input)


def bent(mean: Tensor, var: Tensor, slope: float | Tensor) -> Moments:
    """Moments of `x if x > 0 else slope x`.

    Var = var [R(a) + slope**2 R(-a) + 2 slope m(a) m(-a)]: a sum of positive terms for a
    positive slope.
    """
    a, std, certain = standardise(mean, var)
    unit = rectify(a)
    plain = torch.where(mean > 0, mean, slope * mean)
    bent_mean = std * (unit.mean - slope * unit.mirrored_mean)
    bent_var = var * _unit_var(unit, slope)
    flat_var = torch.where(mean > 0, var, slope * slope * var)
    return Moments(
        torch.where(certain, plain, bent_mean),
        torch.where(certain, flat_var, bent_var),
        innovation=lambda: torch.where(
            certain, torch.zeros_like(var), (1 - slope) ** 2 * var * unit.innovation
        ),
    )


def _unit_var(unit: Rectified, slope: float | Tensor) -> Tensor:
    if isinstance(slope, float) and slope == 0.0:
        return unit.var
    cross = unit.mean * unit.mirrored_mean
    # A product of m(a) ~ a and m(-a) ~ 0 is small far out; clamp protects negative slopes.
    return (unit.var + slope * slope * unit.mirrored_var + 2 * slope * cross).clamp(min=0)


def _slopes(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 0.2)
    yield Sample(draw.moments(3, 4), negative_slope=-0.5)


@rule(
    F.leaky_relu,
    *(spelling for spelling in spellings("leaky_relu") if spelling is not F.leaky_relu),
    name="leaky_relu",
    fidelity=EXACT,
    samples=_slopes,
    pointwise=True,
)
def leaky_relu(input: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """E = std [m(a) - k m(-a)], Var = var [R(a) + k**2 R(-a) + 2 k m(a) m(-a)], slope k.

    Assumes: independent elements; exact for any slope.

    Source: Frey & Hinton 1999.
    """
    return in_float32(lambda x: bent(*x, float(negative_slope)), input)


def _channel_slopes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3, 4), draw.constant(3))
    yield Sample(draw.moments(5), draw.positive(1))


@rule(*spellings("prelu"), name="prelu", fidelity=EXACT, samples=_channel_slopes, pointwise=True)
def prelu(
    input: Moments,  # (batch, channels, *)
    weight: Tensor,  # (channels,) or (1,)
) -> Moments:
    """As `leaky_relu`, with one slope for each channel.

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999.
    """
    trailing = max(input.mean.dim() - 2, 0) if weight.numel() > 1 else 0
    slope = weight.to(input.var.dtype).reshape(weight.shape + (1,) * trailing)
    return in_float32(lambda x: bent(*x, slope), input)


@rule(
    *spellings("abs", "absolute"),
    name="abs",
    fidelity=EXACT,
    samples=one_of_each_shape,
    pointwise=True,
)
def absolute(input: Moments) -> Moments:
    """E = std [m(a) + m(-a)], Var = var [1 - 4 m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: folded normal distribution, Leone, Nelson & Nottingham 1961.
    """
    return in_float32(lambda x: bent(*x, -1.0), input)
