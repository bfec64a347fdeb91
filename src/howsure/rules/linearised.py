"""Functions that a Gaussian leaves the domain of, or meets a pole of: first order in the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from howsure.families import in_float32
from howsure.moments import Moments, variance_dtype
from howsure.registry import LINEARISED, rule, spellings
from howsure.rules.arithmetic import mean_of, var_of
from howsure.samples import Draw, Sample, Samples


def _around(centre: float) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(Moments(centre + 0.1 * draw.positive(3, 4), 1e-4 * draw.positive(3, 4)))

    return samples


def _register(
    function: Callable[..., Tensor],
    derivative: Callable[[Tensor], Tensor],
    *names: str,
    centre: float,
) -> None:
    """Registers f with its derivative; samples lie around `centre`, well inside the domain."""

    @rule(
        *spellings(*names),
        name=names[0],
        fidelity=LINEARISED,
        samples=_around(centre),
        error=0.02,
        pointwise=True,
    )
    def linearised(input: Moments) -> Moments:
        """E = f(m), Var = f'(m)**2 v.

        Assumes: noise that is small against the distance to the edge of the domain or the pole,
        beyond which the Gaussian has no moments.

        Source: Taylor expansion.
        """
        return in_float32(
            lambda x: Moments(function(x[0]), derivative(x[0]).square() * x[1]), input
        )


def _erfinv_slope(x: Tensor) -> Tensor:
    return math.sqrt(math.pi) / 2 * torch.exp(torch.erfinv(x).square())


_register(torch.tan, lambda x: 1 + torch.tan(x).square(), "tan", centre=0.5)
_register(torch.asin, lambda x: torch.rsqrt(1 - x.square()), "asin", "arcsin", centre=0.3)
_register(torch.acos, lambda x: torch.rsqrt(1 - x.square()), "acos", "arccos", centre=0.3)
_register(torch.acosh, lambda x: torch.rsqrt(x.square() - 1), "acosh", "arccosh", centre=2.0)
_register(torch.atanh, lambda x: 1 / (1 - x.square()), "atanh", "arctanh", centre=0.3)
_register(torch.erfinv, _erfinv_slope, "erfinv", centre=0.3)


def _probabilities(draw: Draw) -> Iterable[Sample]:
    steady = Moments(0.4 + 0.1 * draw.positive(3, 4), 1e-4 * draw.positive(3, 4))
    yield Sample(steady)
    yield Sample(steady, eps=1e-3)


@rule(
    *spellings("logit"),
    name="logit",
    fidelity=LINEARISED,
    samples=_probabilities,
    error=0.02,
    pointwise=True,
)
def logit(input: Moments, eps: float | None = None) -> Moments:
    """E = logit(m), Var = v / (m (1 - m))**2; 0 where `eps` clamps the mean.

    Assumes: noise that is small against the distance to 0 and 1.

    Source: Taylor expansion.
    """

    def formula(x: tuple[Tensor, Tensor]) -> Moments:
        m, v = x
        var = v / (m * (1 - m)).square()
        if eps is not None:
            var = torch.where((m > eps) & (m < 1 - eps), var, torch.zeros_like(var))
        return Moments(torch.logit(m, eps), var)

    return in_float32(formula, input)


def _angles(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4, mean=3.0, std=1e-2), draw.moments(3, 4, mean=3.0, std=1e-2))
    yield Sample(draw.moments(3, 4, mean=3.0, std=1e-2), draw.positive(4))


@rule(
    *spellings("atan2", "arctan2"), name="atan2", fidelity=LINEARISED, samples=_angles, error=0.02
)
def atan2(input: Any, other: Any) -> Moments:
    """E = atan2(m1, m2), Var = (m2**2 v1 + m1**2 v2) / (m1**2 + m2**2)**2.

    Assumes: independent operands, and noise that is small against their length.

    Source: Taylor expansion.
    """
    mean = torch.atan2(mean_of(input), mean_of(other))
    dtype = variance_dtype(mean.dtype)
    y, x = mean_of(input).to(dtype), mean_of(other).to(dtype)
    length = y.square() + x.square()
    spread = x.square() * var_of(input) + y.square() * var_of(other)
    return Moments(mean, (spread / length.square()).expand(mean.shape))
