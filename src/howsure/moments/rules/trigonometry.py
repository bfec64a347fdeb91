"""Sine, cosine, sinh and cosh: exact, without cancellation; the inverse of sinh by quadrature."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import bounded, elementwise, pointwise
from howsure.moments.rule import Draw, Sample, Target, spellings
from howsure.moments.value import Moments


@pointwise("sin")
def sin(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{-v/2} sin m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v cos(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return _damped(var, torch.sin(mean), torch.cos(mean))


@pointwise("cos")
def cos(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{-v/2} cos m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v sin(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return _damped(var, torch.cos(mean), torch.sin(mean))


def _damped(var: Tensor, value: Tensor, slope: Tensor) -> Moments:
    loss = -torch.expm1(-var)
    steepness = slope.square() * torch.exp(-var)
    return Moments(torch.exp(-0.5 * var) * value, 0.5 * loss * (loss + 2 * steepness))


def _narrow(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4, std=0.5))
    yield Sample(draw.moments(7, mean=2.0, std=0.2))


@pointwise("sinh", samples=_narrow)
def sinh(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{v/2} sinh m, Var = g + g**2 / 2 + g (1 + g) sinh(m)**2 with g = e^v - 1.

    Cut off at the largest number.

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return _grown(mean, var, torch.sinh, 1.0)


@pointwise("cosh", samples=_narrow)
def cosh(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{v/2} cosh m, Var = g**2 / 2 + g (1 + g) sinh(m)**2 with g = e^v - 1.

    Cut off at the largest number.

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return _grown(mean, var, torch.cosh, 0.0)


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
