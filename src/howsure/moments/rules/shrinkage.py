"""Activations that set small values to a constant: shrinkage and thresholds, in closed form.

With a = (mean - t) / std: E[(x - t)+] = std m(a), its variance is var R(a), and x exceeds t with
probability Phi(a) (`howsure.moments.numerics.rectify`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import pointwise
from howsure.moments.numerics import cdf, rectify, standardise
from howsure.moments.rule import Draw, Sample, one_of_each_shape, rule_of
from howsure.moments.rules.rectifiers import leaky_relu
from howsure.moments.value import Moments


def _lambdas(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 0.2)


def _difference(upper: Moments, lower: Moments) -> Moments:
    """Moments of U - L for U, L >= 0 of which one is always 0: Cov(U, L) = -E[U] E[L]."""
    cross = 2 * upper.mean * lower.mean
    return Moments(upper.mean - lower.mean, upper.var + lower.var + cross)


@pointwise("softshrink", samples=_lambdas)
def softshrink(mean: Tensor, var: Tensor, lambd: float = 0.5) -> Moments:
    """E = std [m(a) - m(b)], Var = var [R(a) + R(b) + 2 m(a) m(b)].

    a = (mean - lambd) / std and b = (-mean - lambd) / std.

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999, for the two rectifiers of which one is always 0.
    """
    a, std, sure = standardise(mean - lambd, var)
    b, _, surely = standardise(-mean - lambd, var)
    certain = sure | surely
    above, below = rectify(a), rectify(b)
    upper = Moments(std * above.mean, var * above.var)
    out = _difference(upper, Moments(std * below.mean, var * below.var))
    plain = F.softshrink(mean, lambd)
    moved = torch.where(plain != 0, var, torch.zeros_like(var))
    return Moments(torch.where(certain, plain, out.mean), torch.where(certain, moved, out.var))


def _cut_off(mean: Tensor, var: Tensor, limit: float, value: float) -> Moments:
    """Moments of `x if x > limit else value`.

    y = value + (x - limit)+ + jump [x > limit] with jump = limit - value.
    """
    a, std, certain = standardise(mean - limit, var)
    unit, jump = rectify(a), limit - value
    above, below = unit.probability, cdf(-a)
    excess = std * unit.mean
    spread = var * unit.var + jump * jump * above * below + 2 * jump * excess * below
    over = mean > limit
    return Moments(
        torch.where(certain, torch.where(over, mean, value), value + excess + jump * above),
        # A jump downwards subtracts; the sum is a variance and negative by rounding only.
        torch.where(certain, torch.where(over, var, torch.zeros_like(var)), spread.clamp(min=0)),
    )


def _levels(draw: Draw) -> Iterable[Sample]:
    for threshold, value in ((0.2, -1.0), (0.0, 0.0), (-0.5, 0.7)):
        yield Sample(draw.moments(3, 4), threshold, value)


# What the oracle's grid sees of a step.
_STEP_ERROR = 1e-3


@pointwise("threshold", first=F.threshold, samples=_levels, error=_STEP_ERROR)
def threshold(
    mean: Tensor, var: Tensor, threshold: float, value: float, inplace: bool = False
) -> Moments:
    """Var = var R(a) + d**2 Phi(a) Phi(-a) + 2 d std m(a) Phi(-a), d = threshold - value.

    E = value + std m(a) + d Phi(a) with a = (mean - threshold) / std.

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999, with a step of height d.
    """
    return _cut_off(mean, var, threshold, value)


@pointwise("hardshrink", samples=_lambdas, error=_STEP_ERROR)
def hardshrink(mean: Tensor, var: Tensor, lambd: float = 0.5) -> Moments:
    """Var = Var[U] + Var[L] + 2 E[U] E[L], U and L as `threshold(x, lambd, 0)` of x and -x.

    Assumes: independent elements; exact.

    Source: `threshold`.
    """
    return _difference(_cut_off(mean, var, lambd, 0.0), _cut_off(-mean, var, lambd, 0.0))


@rule_of(
    "rrelu",
    first=F.rrelu,
    samples=lambda draw: [Sample(draw.moments(7)), Sample(draw.moments(3, 4), 0.1, 0.7)],
)
def rrelu(
    input: Moments,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: object = False,
) -> Moments:
    """As `leaky_relu` with the slope (lower + upper) / 2, in eval mode."""
    if training:
        raise NoRuleError("`rrelu` in train mode draws random slopes. Call `model.eval()`.")
    return leaky_relu(input, (lower + upper) / 2)
