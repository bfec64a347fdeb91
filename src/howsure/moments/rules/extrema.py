"""The larger and the smaller of Gaussians."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from howsure.moments.families import bounded
from howsure.moments.numerics import cdf, in_blocks, in_deviations, plus_product, unit_tail
from howsure.moments.rule import APPROXIMATE, Draw, Rule, Sample, rule_of
from howsure.moments.value import Moments, Refused, certain
from howsure.trees import is_tracing


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(draw.moments(3, 4), draw.constant(4))
    yield Sample(draw.constant(3, 1), draw.moments(4))
    same = draw.moments(3, 4)
    yield Sample(same, same)


@rule_of("maximum", "fmax", samples=_pairs)
def maximum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = max(m1, m2) + t m(-|a|), Var = v1 R(a) + v2 R(-a), t**2 = v1 + v2, a = (m1 - m2) / t.

    R(a) = Phi(a) - m(a) m(-a): Clark's variance as a sum of positive terms.

    Assumes: the two are independent; exact then.

    Source: Clark 1961, Eq. 2 to 4, rearranged.
    """
    if input is other:
        assert isinstance(input, Moments)
        return Moments(input.mean, input.var)
    return larger(_moments(input, other), _moments(other, input))


def _moments(operand: Moments | Tensor, like: Moments | Tensor) -> Moments:
    if isinstance(operand, Moments):
        return operand
    assert isinstance(like, Moments)
    return certain(torch.as_tensor(operand).to(like.mean))


def larger(first: Moments, second: Moments) -> Moments:
    """Moments of the larger of two independent Gaussians (Clark 1961)."""
    inputs = torch.broadcast_tensors(first.mean, first.var, second.mean, second.var)
    return Moments(*in_blocks(larger_of_two, *inputs))


def larger_of_two(
    mean1: Tensor, var1: Tensor, mean2: Tensor, var2: Tensor
) -> tuple[Tensor, Tensor]:
    """E = max(m1, m2) + t n, Var = v' + n [(h - n) t**2 - 2 w v'], v' that of the larger mean.

    n = m(-|a|) is what the noise adds to the larger mean. Elementwise.
    """
    spread = var1 + var2
    a, std = in_deviations(mean1 - mean2, spread)
    n, rest, reach, step = unit_tail(a)
    top, leading = torch.maximum(mean1, mean2), _leading(var1, var2, step)
    inner = plus_product(rest * spread, reach, leading, -2)
    lifted = plus_product(top, std, n) if top.dtype == n.dtype else top + (std * n).to(top.dtype)
    return lifted, plus_product(leading, n, inner)


def _leading(var1: Tensor, var2: Tensor, step: Tensor) -> Tensor:
    """The variance of the larger mean; compilers make slow code of `lerp`, torch of `where`."""
    if is_tracing():
        return torch.where(step > 0, var1, var2)
    return torch.lerp(var2, var1, step)


@rule_of("minimum", "fmin", samples=_pairs)
def minimum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """As `-maximum(-x, -y)`."""
    if input is other:
        return maximum(input, other)
    out = larger(_negated(_moments(input, other)), _negated(_moments(other, input)))
    return _negated(out)


def _negated(moments: Moments) -> Moments:
    return Moments(-moments.mean, moments.var)


def _dimensions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), 1)
    yield Sample(draw.moments(2, 3, 4), (1, 2), keepdim=True)
    yield Sample(draw.moments(2, 9, 2), dim=1)


@rule_of("amax", fidelity=APPROXIMATE, samples=_dimensions, error=0.01)
def amax(input: Moments, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """E = hi - I0, Var = 2 I1 - I0**2: integrals of F(x) = prod_j Phi((x - m_j) / s_j).

    I0 = int F, I1 = int (hi - x) F over [max(m - 5 s), hi = max(m + 5 s)], 24 Gauss-Legendre
    nodes.

    Assumes: independent elements; exact then to 1e-3.

    Source: integration by parts of the distribution function of the maximum.
    """
    axes = _axes(dim, input.mean.dim())
    out = _largest(input.mean.to(input.var.dtype), input.var, axes)
    mean, var = bounded(out.mean, input.mean.dtype).to(input.mean.dtype), out.var
    return Moments(mean, var) if keepdim else Moments(mean.squeeze(axes), var.squeeze(axes))


def _axes(dim: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    chosen = (dim,) if isinstance(dim, int) else tuple(dim or range(count))
    return tuple(axis % count for axis in chosen)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _largest(mean: Tensor, var: Tensor, axes: tuple[int, ...]) -> Moments:
    """Moments of the largest element along `axes`, which stay with size 1."""
    certain = var == 0
    std = torch.where(certain, 1.0, var).sqrt()
    reach = torch.where(certain, 0.0, 5 * std)
    low = (mean - reach).amax(axes, keepdim=True)
    high = (mean + reach).amax(axes, keepdim=True)
    half = (high - low) / 2
    zeroth, first = torch.zeros_like(half), torch.zeros_like(half)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        x = low + half * (node + 1)
        below = torch.where(certain, (x >= mean).to(mean), cdf((x - mean) / std))
        joint = below
        for each in axes:
            joint = joint.prod(each, keepdim=True)
        zeroth = zeroth + weight * joint
        first = first + weight * joint * (1 - node)
    zeroth, first = zeroth * half, first * half.square()
    return Moments(high - zeroth, (2 * first - zeroth.square()).clamp(min=0))


@rule_of("amin", fidelity=APPROXIMATE, samples=_dimensions, error=0.01)
def amin(input: Moments, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """As `-amax(-x)`."""
    return _negated(amax(_negated(input), dim, keepdim))


def _whole_and_pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 5))
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))


_INDICES = (
    "The position of the largest or smallest element is not a Gaussian; the values alone are: "
    '`x.max(dim)[0]` or `x.amax(dim)`. `fallback="linearise"` freezes the position at the mean.'
)


class Extreme(NamedTuple):
    """What `max(dim)` and `min(dim)` return; the indices must not be used."""

    values: Moments
    indices: Refused


@rule_of("max", fidelity=APPROXIMATE, samples=_whole_and_pairs, error=0.01)
def max_of(input: Moments | Tensor, *args: object, **kwargs: object) -> Moments | Extreme:
    """As `amax` over everything or a dimension, or `maximum` of two tensors."""
    return _extremum(amax, maximum, input, *args, **kwargs)


@rule_of("min", fidelity=APPROXIMATE, samples=_whole_and_pairs, error=0.01)
def min_of(input: Moments | Tensor, *args: object, **kwargs: object) -> Moments | Extreme:
    """As `amin` over everything or a dimension, or `minimum` of two tensors."""
    return _extremum(amin, minimum, input, *args, **kwargs)


def _extremum(
    over_axes: Rule, of_two: Rule, input: Any, *args: Any, **kwargs: Any
) -> Moments | Extreme:
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, (Moments, Tensor)):
        return of_two(input, other)
    if not args and not kwargs:
        return over_axes(input)
    settings = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
    position = torch.argmax if over_axes is amax else torch.argmin
    return Extreme(
        over_axes(input, **settings), Refused(position(input.mean, **settings), _INDICES)
    )
