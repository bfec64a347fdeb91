"""The larger and the smaller of Gaussians."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments import Moments, linear_moments
from howsure.normal import cdf, rectify, standardise
from howsure.registry import APPROXIMATE, EXACT, rule, spellings
from howsure.samples import Draw, Sample


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(draw.moments(3, 4), draw.constant(4))
    yield Sample(draw.constant(3, 1), draw.moments(4))
    same = draw.moments(3, 4)
    yield Sample(same, same)


@rule(*spellings("maximum", "fmax"), name="maximum", fidelity=EXACT, samples=_pairs)
def maximum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = max(m1, m2) + t m(-|a|), Var = v1 R(a) + v2 R(-a), t**2 = v1 + v2, a = (m1 - m2) / t.

    R(a) = Phi(a) - m(a) m(-a): Clark's variance as a sum of positive terms.

    Assumes: the two are independent; exact then.

    Source: Clark 1961, Eq. 2 to 4, rearranged.
    """
    if input is other:
        assert isinstance(input, Moments)
        return linear_moments(input.mean, input.var)
    return larger(_moments(input, other), _moments(other, input))


def _moments(operand: Moments | Tensor, like: Moments | Tensor) -> Moments:
    if isinstance(operand, Moments):
        return operand
    assert isinstance(like, Moments)
    constant = torch.as_tensor(operand).to(like.mean)
    return Moments(constant, torch.zeros_like(constant, dtype=like.var.dtype))


def larger(first: Moments, second: Moments) -> Moments:
    """Moments of the larger of two independent Gaussians (Clark 1961)."""
    spread = first.var + second.var
    difference = (first.mean - second.mean).to(spread.dtype)
    a, std, certain = standardise(difference, spread)
    unit = rectify(a)
    # m(-|a|), what the noise adds to the larger mean.
    gain = torch.minimum(unit.mean, unit.mirrored_mean)
    top = torch.maximum(first.mean, second.mean)
    mean = torch.where(certain, top, (top + std * gain).to(top.dtype))
    var = first.var * unit.var + second.var * unit.mirrored_var
    winner = torch.where(difference >= 0, first.var, second.var)
    return Moments(
        mean,
        torch.where(certain, winner, var),
        innovation=lambda: torch.where(certain, torch.zeros_like(spread), spread * unit.innovation),
    )


@rule(*spellings("minimum", "fmin"), name="minimum", fidelity=EXACT, samples=_pairs)
def minimum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """As `-maximum(-x, -y)`.

    Assumes: the two are independent; exact then.

    Source: Clark 1961.
    """
    if input is other:
        return maximum(input, other)
    out = larger(_negated(_moments(input, other)), _negated(_moments(other, input)))
    return _negated(out)


def _negated(moments: Moments) -> Moments:
    return Moments(-moments.mean, moments.var, moments.innovation)


def _dimensions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), 1)
    yield Sample(draw.moments(2, 3, 4), (1, 2), keepdim=True)
    yield Sample(draw.moments(2, 9, 2), dim=1)


@rule(*spellings("amax"), name="amax", fidelity=APPROXIMATE, samples=_dimensions, error=0.01)
def amax(input: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """E = hi - I0, Var = 2 I1 - I0**2: integrals of F(x) = prod_j Phi((x - m_j) / s_j).

    I0 = int F, I1 = int (hi - x) F over [max(m - 5 s), hi = max(m + 5 s)], 24 Gauss-Legendre
    nodes.

    Assumes: independent elements; exact then to 1e-3.

    Source: integration by parts of the distribution function of the maximum.
    """
    out = _largest(input.mean.to(input.var.dtype), input.var, _axes(dim, input.mean.dim()))
    if not keepdim:
        out = (
            out.mean.squeeze(_axes(dim, input.mean.dim())),
            out.var.squeeze(_axes(dim, input.mean.dim())),
        )
        return Moments(out[0].to(input.mean.dtype), out[1])
    return Moments(out.mean.to(input.mean.dtype), out.var)


def _axes(dim: Any, count: int) -> tuple[int, ...]:
    chosen = (dim,) if isinstance(dim, int) else tuple(dim or range(count))
    return tuple(axis % count for axis in chosen)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _largest(mean: Tensor, var: Tensor, axes: tuple[int, ...]) -> Moments:
    """Moments of the largest element along `axes`, which stay with size 1."""
    axis = axes[-1]
    for other in axes[:-1]:
        # One axis at a time would be Clark's approximation; fold them into one instead.
        mean, var = (t.transpose(other, axis) for t in (mean, var))
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


@rule(*spellings("amin"), name="amin", fidelity=APPROXIMATE, samples=_dimensions, error=0.01)
def amin(input: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """As `-amax(-x)`.

    Assumes: independent elements.

    Source: `amax`.
    """
    return _negated(amax(_negated(input), dim, keepdim))


def _whole_and_pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 5))
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))


_INDICES = (
    "the position of the largest or smallest element is not a Gaussian; use `amax(dim)` or "
    "`amin(dim)`, which return the values alone."
)


@rule(*spellings("max"), name="max", fidelity=APPROXIMATE, samples=_whole_and_pairs, error=0.01)
def max_of(input: Moments | Tensor, *args: Any, **kwargs: Any) -> Moments:
    """As `amax` over everything, or `maximum` of two tensors.

    Assumes: see `amax` and `maximum`.

    Source: `amax`, `maximum`.
    """
    return _extremum(amax, maximum, input, *args, **kwargs)


@rule(*spellings("min"), name="min", fidelity=APPROXIMATE, samples=_whole_and_pairs, error=0.01)
def min_of(input: Moments | Tensor, *args: Any, **kwargs: Any) -> Moments:
    """As `amin` over everything, or `minimum` of two tensors.

    Assumes: see `amin` and `minimum`.

    Source: `amin`, `minimum`.
    """
    return _extremum(amin, minimum, input, *args, **kwargs)


def _extremum(over_all: Any, of_two: Any, input: Any, *args: Any, **kwargs: Any) -> Moments:
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, (Moments, Tensor)):
        return of_two(input, other)
    if args or kwargs:
        raise NoRuleError(_INDICES)
    return over_all(input)
