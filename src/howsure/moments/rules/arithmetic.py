"""Sums, differences, products and quotients, with constants and with other Gaussians."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule, rule_of
from howsure.moments.rules.powers import reciprocal, square
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype

Operand = Moments | Tensor | float


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(draw.moments(3, 4), draw.constant(4))
    yield Sample(draw.moments(1, 4), draw.constant(3, 1))
    yield Sample(draw.constant(3, 4), draw.moments(4))
    yield Sample(draw.moments(3, 1), draw.moments(4))
    yield Sample(draw.moments(3, 4), 1.7)
    twice = draw.moments(3, 4)
    yield Sample(twice, twice)


def _pairs_with_alpha(draw: Draw) -> Iterable[Sample]:
    yield from _pairs(draw)
    yield Sample(draw.moments(3, 4), draw.moments(3, 4), alpha=-0.4)


def _linear(mean: Tensor, var: Tensor) -> Moments:
    """Moments with the variance in the mean's shape and dtype, which broadcasting has chosen."""
    return Moments(mean, var.to(variance_dtype(mean.dtype)).expand(mean.shape))


@rule_of("add", also=(torch.Tensor.__radd__,), samples=_pairs_with_alpha, adds_up=True)
def add(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """E = m1 + alpha m2, Var = v1 + alpha**2 v2; `x + x` is 2 x.

    Assumes: different tensors are independent. A residual connection adds correlated branches:
    the main error of diagonal propagation.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    mean = torch.add(_tensor(input, other), mean_of(other), alpha=alpha)
    if input is other:
        return _linear(mean, var_of(input) * (1 + alpha) ** 2)
    return _linear(mean, var_of(input) + var_of(other) * alpha**2)


def _tensor(operand: Operand, like: Operand) -> Tensor:
    """The operand's mean; a number becomes a tensor like the other operand."""
    mean = mean_of(operand)
    return mean if isinstance(mean, Tensor) else torch.as_tensor(mean).to(mean_of(like))


@rule_of("sub", "subtract", samples=_pairs_with_alpha)
def sub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """E = m1 - alpha m2, Var = v1 + alpha**2 v2; `x - x` is 0.

    Assumes: different tensors are independent.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    return add(input, other, alpha=-alpha)


@rule_of("rsub", also=(torch.Tensor.__rsub__,), samples=_pairs_with_alpha)
def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """As `sub(other, input)`."""
    return add(other, input, alpha=-alpha)


@rule_of("neg", "negative", samples=lambda draw: [Sample(draw.moments(3, 4))])
def neg(input: Moments) -> Moments:
    """E = -mean, Var = var.

    Assumes: nothing; exact.

    Source: definition.
    """
    return Moments(-input.mean, input.var)


@rule_of("mul", "multiply", also=(torch.Tensor.__rmul__,), samples=_pairs)
def mul(input: Operand, other: Operand) -> Moments:
    """E = m1 m2, Var = m1**2 v2 + m2**2 v1 + v1 v2; `x * x` is a square.

    Assumes: different tensors are independent; exact then.

    Source: product of independent variables, Goodman 1960.
    """
    if input is other and isinstance(input, Moments):
        return square(input)
    mean = torch.mul(_tensor(input, other), mean_of(other))
    dtype = variance_dtype(mean.dtype)
    if not (isinstance(input, Moments) and isinstance(other, Moments)):
        random, constant = (input, other) if isinstance(input, Moments) else (other, input)
        factor: Any = constant.to(dtype) if isinstance(constant, Tensor) else constant
        return _linear(mean, var_of(random) * (factor * factor))
    first, second = input.mean.to(dtype), other.mean.to(dtype)
    # One factor after the other: the square of a mean may overflow where its variance is 0.
    var = first * other.var * first + second * input.var * second
    return Moments(mean, var + (input.var * other.var).to(dtype))


def _quotients(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.positive(4))
    yield Sample(draw.moments(3, 4), 1.7)
    steady = Moments(4 + draw.positive(3, 4), 0.01 * draw.positive(3, 4))
    yield Sample(draw.moments(3, 4), steady)
    yield Sample(2.0, steady)


@rule_of(
    "div",
    "divide",
    "true_divide",
    "__truediv__",
    fidelity=APPROXIMATE,
    samples=_quotients,
    error=0.05,
)
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Moments:
    """Var = var / c**2 for a constant c; else the product with `reciprocal(other)`.

    Assumes: different tensors are independent. Exact for a constant divisor; a Gaussian one has
    no finite moments and is taken as log-normal, good to 5 % for mean / std above 5.

    Source: `mul` and `reciprocal`.
    """
    if rounding_mode is not None:
        raise NoRuleError("A rounded quotient is a step function; divide without `rounding_mode`.")
    if isinstance(other, Moments):
        return mul(input, reciprocal(other))
    assert isinstance(input, Moments)
    mean = torch.div(input.mean, other)
    divisor = other.to(input.var.dtype) if isinstance(other, Tensor) else other
    return _linear(mean, input.var / divisor / divisor)


@rule(
    torch.Tensor.__rdiv__,
    name="rdiv",
    fidelity=APPROXIMATE,
    samples=lambda draw: [Sample(Moments(4 + draw.positive(3), 0.01 * draw.positive(3)), 2.0)],
    error=0.05,
)
def rdiv(self: Moments, other: Operand) -> Moments:
    """As `div(other, self)`."""
    return div(other, self)
