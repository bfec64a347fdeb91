"""Logarithms to all bases, and the logarithm of a sum of two exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import in_float32, pointwise
from howsure.moments.numerics.quadrature import expectation
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule_of
from howsure.moments.rules.powers import log_normal_of
from howsure.moments.value import Moments, mean_of, var_of


def _steady(draw: Draw) -> Iterable[Sample]:
    yield Sample(Moments(2 + draw.positive(3, 4), 0.02 * draw.positive(3, 4)))


@pointwise("log", fidelity=APPROXIMATE, samples=_steady, error=0.05)
def log(mean: Tensor, var: Tensor) -> Moments:
    """E = log mean - l / 2, Var = l, with l = log(1 + var / mean**2).

    Assumes: independent elements, taken as log-normal; good for mean / std above 5.

    Source: moments of the log-normal distribution.
    """
    return _logged(mean, var)


def _logged(mean: Tensor, var: Tensor, shift: float = 0.0) -> Moments:
    centre, log_var = log_normal_of(mean + shift, var)
    # log1p keeps the digits of a small mean that 1 + mean loses.
    plain = torch.log1p(mean) if shift else torch.log(mean)
    value = torch.where(centre == mean + shift, plain, torch.log(centre))
    return Moments(value - 0.5 * log_var, log_var)


@pointwise("log1p", fidelity=APPROXIMATE, samples=_steady, error=0.05)
def log1p(mean: Tensor, var: Tensor) -> Moments:
    """As `log(1 + x)`."""
    return _logged(mean, var, 1.0)


def _register(name: str, base: float) -> None:
    @rule_of(name, fidelity=APPROXIMATE, samples=_steady, error=0.05, pointwise=True)
    def logarithm(input: Moments) -> Moments:
        """As `log(x) / log(base)`."""
        out, unit = log(input), math.log(base)
        return Moments(out.mean / unit, out.var / unit**2)


_register("log2", 2.0)
_register("log10", 10.0)


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(draw.moments(3, 4, std=0.3), draw.constant(4))
    yield Sample(draw.constant(3, 1), draw.moments(4))
    same = draw.moments(3, 4)
    yield Sample(same, same)


@rule_of("logaddexp", samples=_pairs, error=1e-3)
def logaddexp(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = m_big + E[softplus(d)], Var = Var[softplus(d)] + v_big (1 - 2 E[sigmoid(d)]).

    d ~ N(m_small - m_big, v1 + v2), by quadrature; big is the operand with the larger mean.

    Assumes: the two are independent; exact then, up to the quadrature's error.

    Source: log(e^x + e^y) = y + softplus(x - y), and Stein's lemma for the covariance.
    """
    if input is other:
        assert isinstance(input, Moments)
        return Moments(input.mean + math.log(2), input.var)
    mean = torch.logaddexp(mean_of(input), mean_of(other))
    dtype = input.var.dtype if isinstance(input, Moments) else var_of(other).dtype
    spread = torch.zeros_like(mean, dtype=dtype) + var_of(input) + var_of(other)
    gap = (mean_of(input) - mean_of(other)).to(dtype)
    return in_float32(
        lambda *_: _summed(mean, gap, spread, var_of(input), var_of(other)), Moments(mean, spread)
    )


def _summed(
    plain: Tensor, gap: Tensor, spread: Tensor, first: Tensor | float, second: Tensor | float
) -> Moments:
    """Moments from the gap of the means; the small operand's side loses no digits."""
    distance = -gap.abs()
    soft, share = (expectation(f, distance, spread) for f in (F.softplus, torch.sigmoid))
    ahead = gap > 0
    big = torch.where(ahead, spread * 0 + first, spread * 0 + second)
    var = soft.var + big * (1 - 2 * share.mean)
    return Moments(plain + (soft.mean - F.softplus(distance)), var)
