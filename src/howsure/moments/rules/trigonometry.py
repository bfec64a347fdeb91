"""Sine, cosine, sinh and cosh: exact, without cancellation; the inverse of sinh by quadrature."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import bounded, elementwise, in_float32
from howsure.moments.rule import Target, rule_of, spellings
from howsure.moments.samples import Draw, Sample, one_of_each_shape
from howsure.moments.value import Moments


@rule_of("sin", samples=one_of_each_shape, pointwise=True)
def sin(input: Moments) -> Moments:
    """E = e^{-v/2} sin m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v cos(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return in_float32(lambda x: _damped(x[1], torch.sin(x[0]), torch.cos(x[0])), input)


@rule_of("cos", samples=one_of_each_shape, pointwise=True)
def cos(input: Moments) -> Moments:
    """E = e^{-v/2} cos m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v sin(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return in_float32(lambda x: _damped(x[1], torch.cos(x[0]), torch.sin(x[0])), input)


def _damped(var: Tensor, value: Tensor, slope: Tensor) -> Moments:
    loss = -torch.expm1(-var)
    steepness = slope.square() * torch.exp(-var)
    return Moments(torch.exp(-0.5 * var) * value, 0.5 * loss * (loss + 2 * steepness))


def _narrow(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4, std=0.5))
    yield Sample(draw.moments(7, mean=2.0, std=0.2))


@rule_of("sinh", samples=_narrow, pointwise=True)
def sinh(input: Moments) -> Moments:
    """E = e^{v/2} sinh m, Var = g + g**2 / 2 + g (1 + g) sinh(m)**2 with g = e^v - 1.

    Cut off at the largest number.

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return in_float32(lambda x: _grown(*x, torch.sinh, 1.0), input)


@rule_of("cosh", samples=_narrow, pointwise=True)
def cosh(input: Moments) -> Moments:
    """E = e^{v/2} cosh m, Var = g**2 / 2 + g (1 + g) sinh(m)**2 with g = e^v - 1.

    Cut off at the largest number.

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return in_float32(lambda x: _grown(*x, torch.cosh, 0.0), input)


def _grown(mean: Tensor, var: Tensor, function: Target, offset: float) -> Moments:
    """E = e^{v/2} f(m), Var = offset g + g**2 / 2 + g (1 + g) sinh(m)**2."""
    growth = bounded(torch.expm1(var))
    steepness = bounded(torch.sinh(mean))
    # One factor after the other: the square alone may overflow where the product does not.
    slope = bounded(bounded(growth * (1 + growth)) * steepness) * steepness
    spread = bounded(growth * (offset + 0.5 * growth)) + bounded(slope)
    half = bounded(torch.exp(0.25 * var))
    return Moments(bounded(bounded(bounded(function(mean)) * half) * half), bounded(spread))


elementwise(torch.asinh, *spellings("asinh", "arcsinh"), name="asinh")
