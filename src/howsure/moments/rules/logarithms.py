"""Logarithms to all bases, and the logarithm of a sum of two exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import pointwise
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule_of
from howsure.moments.rules.powers import log_normal_of
from howsure.moments.value import Moments


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
