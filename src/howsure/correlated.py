"""Products and maxima of two Gaussians whose covariance the probes carry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure.blocks import in_blocks
from howsure.concrete import is_traced
from howsure.moments import variance_dtype
from howsure.responses import Bend, Probed, Response, scalar
from howsure.unit_tail import Tail, in_deviations, plus_product, unit_tail

# Beyond, the squares of all directions do not fit into a cache.
_AT_ONCE = 2**15


def square_sum(probes: Tensor) -> Tensor:
    """The variance that directions stand for."""
    probes = probes.to(variance_dtype(probes.dtype))
    if is_traced() or probes.numel() <= _AT_ONCE:
        return probes.square().sum(0)
    first, *others = probes.unbind()
    total = first.square()
    for each in others:
        total = torch.addcmul(total, each, each)
    return total


def product(x: Probed, y: Probed, *, independent: bool = False) -> Response:
    """E = m1 m2 + c, J F = m1 F2 + m2 F1, r = v1 v2 + c**2, with the covariance c = F1 . F2.

    x y = (x + y)**2 / 4 - (x - y)**2 / 4 is all quadratic. Source: Goodman 1960.
    """
    x, y = _aligned(x, y)
    with torch.no_grad():
        both = (x.probes * y.probes).sum(0)
        shared = torch.zeros_like(both) if independent else both
        probes = x.mean * y.probes + y.mean * x.probes
        beyond = x.var * y.var + shared.square()
        half = torch.full_like(both, 0.5)
        bends = (Bend(half, x.probes + y.probes), Bend(-half, x.probes - y.probes))
        var = x.mean.square() * y.var + y.mean.square() * x.var + beyond
    return Response(x.mean * y.mean + shared, probes, beyond, bends, None, var)


def rectified(x: Probed, *args: Any, **kwargs: Any) -> Response:
    """E[max(x, 0)] = s m(a), E[f'] = Phi(a), E[f''] = phi(a) / s, a = m / s: Frey & Hinton 1999.

    What `howsure.responses.pointwise` finds by differentiation, at a third of its cost.
    """
    with torch.no_grad():
        mean = x.mean.to(x.var.dtype)
        value, slope, curvature, beyond = in_blocks(_rectified, mean, x.var.expand(mean.shape))
    dtype = x.mean.dtype
    return scalar(x, value.to(dtype), slope.to(dtype), curvature, beyond)


def _rectified(mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    """E[f], E[f'], E[f''] and the innovation."""
    a, std = in_deviations(mean, var)
    tail = unit_tail(a)
    slope, beyond = tail.slope_and_innovation
    value = plus_product(mean.clamp(min=0), std, tail.mean)
    return value, slope, _curvature(tail, std), var * beyond


def _curvature(tail: Tail, std: Tensor) -> Tensor:
    """phi(a) / std, 0 where nothing is random."""
    return torch.where(std > 0, tail.density / std, 0.0)


def larger(x: Probed, y: Probed) -> Response:
    """E = max(m1, m2) + t m(-|a|), J F = F2 + Phi(a) (F1 - F2), a = (m1 - m2) / t.

    t**2 = Var[x - y] = v1 + v2 - 2 c comes from F1 - F2. Source: Clark 1961.
    """
    x, y = _aligned(x, y)
    with torch.no_grad():
        apart = x.probes - y.probes
        spread = square_sum(apart)
        difference = (x.mean - y.mean).to(spread.dtype)
        gain, share, other, curvature, beyond = in_blocks(_larger, difference, spread)
        share, other = share.to(x.mean.dtype), other.to(x.mean.dtype)
        rest = (beyond - (curvature * spread).square() / 2).clamp(min=0)
        mean = torch.maximum(x.mean, y.mean) + gain.to(x.mean.dtype)
        probes = y.probes + share * apart
    if x.mean.requires_grad or y.mean.requires_grad:
        mean = mean + share * (x.mean - x.mean.detach())
        mean = mean + other * (y.mean - y.mean.detach())
    return Response(mean, probes, beyond, (Bend(curvature.to(mean.dtype), apart),), rest)


def _larger(difference: Tensor, spread: Tensor) -> tuple[Tensor, ...]:
    """What the noise adds to the larger mean, Phi(a), Phi(-a), E[f''] and the innovation."""
    a, std = in_deviations(difference, spread)
    tail = unit_tail(a)
    share, other, beyond = tail.shares_and_innovation
    return std * tail.mean, share, other, _curvature(tail, std), spread * beyond


def smaller(x: Probed, y: Probed) -> Response:
    """As `-larger(-x, -y)`."""
    out = larger(_negated(x), _negated(y))
    bends = tuple(Bend(-bend.curvature, bend.directions) for bend in out.bends)
    return Response(-out.mean, -out.probes, out.innovation, bends, out.rest)


def _negated(x: Probed) -> Probed:
    return Probed(-x.mean, x.var, None, -x.probes)


def _aligned(*operands: Probed) -> tuple[Probed, ...]:
    """Directions with as many axes as the broadcast result, behind the one that counts them."""
    axes = max(each.mean.dim() for each in operands)
    return tuple(
        Probed(
            each.mean,
            each.var,
            None,
            each.probes.reshape(
                each.probes.shape[:1] + (1,) * (axes - each.mean.dim()) + each.mean.shape
            ),
        )
        for each in operands
    )
