"""Hyperbolic functions: sinh and cosh exactly, the inverse of sinh by quadrature."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.families import elementwise, in_float32
from howsure.moments import Moments
from howsure.registry import EXACT, Target, rule, spellings
from howsure.samples import Draw, Sample


def _narrow(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4, std=0.5))
    yield Sample(draw.moments(7, mean=2.0, std=0.2))


@rule(*spellings("sinh"), name="sinh", fidelity=EXACT, samples=_narrow, pointwise=True)
def sinh(input: Moments) -> Moments:
    """E = e^{v/2} sinh m, Var = 1/2 (e^v - 1) (e^v cosh 2m + 1); cut off at the largest number.

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return in_float32(lambda x: _wave(*x, torch.sinh, 1), input)


@rule(*spellings("cosh"), name="cosh", fidelity=EXACT, samples=_narrow, pointwise=True)
def cosh(input: Moments) -> Moments:
    """E = e^{v/2} cosh m, Var = 1/2 (e^v - 1) [(e^v - 1) cosh 2m + 2 sinh(m)**2].

    Assumes: independent elements; exact.

    Source: moment generating function of the normal distribution.
    """
    return in_float32(lambda x: _wave(*x, torch.cosh, -1), input)


def _wave(mean: Tensor, var: Tensor, function: Target, sign: int) -> Moments:
    """Var = 1/2 (e^v - 1) (e^v cosh 2m + sign), with cosh 2m = 1 + 2 sinh(m)**2."""
    largest = torch.finfo(mean.dtype).max
    # sinh and cosh overflow where their square does; cut off well before.
    m = mean.clamp(-40, 40) if mean.dtype == torch.float32 else mean.clamp(-340, 340)
    growth = torch.expm1(var).clamp(max=largest)
    square = 2 * torch.sinh(m).square()
    inner = growth * (1 + square) + (square if sign < 0 else square + 2)
    out_var = (0.5 * growth * inner.clamp(max=largest)).clamp(max=largest)
    lift = torch.exp(0.5 * var).clamp(max=largest)
    return Moments((lift * function(m)).clamp(-largest, largest), out_var)


elementwise(torch.asinh, *spellings("asinh", "arcsinh"), name="asinh")
