"""Sine and cosine: exact, in a form without cancellation."""

from __future__ import annotations

import torch
from torch import Tensor

from howsure.moments.families import in_float32
from howsure.moments.rule import EXACT, rule, spellings
from howsure.moments.samples import one_of_each_shape
from howsure.moments.value import Moments


@rule(*spellings("sin"), name="sin", fidelity=EXACT, samples=one_of_each_shape, pointwise=True)
def sin(input: Moments) -> Moments:
    """E = e^{-v/2} sin m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v cos(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return in_float32(lambda x: _wave(x[1], torch.sin(x[0]), torch.cos(x[0])), input)


@rule(*spellings("cos"), name="cos", fidelity=EXACT, samples=one_of_each_shape, pointwise=True)
def cos(input: Moments) -> Moments:
    """E = e^{-v/2} cos m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v sin(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return in_float32(lambda x: _wave(x[1], torch.cos(x[0]), torch.sin(x[0])), input)


def _wave(var: Tensor, value: Tensor, slope: Tensor) -> Moments:
    loss = -torch.expm1(-var)
    steepness = slope.square() * torch.exp(-var)
    return Moments(torch.exp(-0.5 * var) * value, 0.5 * loss * (loss + 2 * steepness))
