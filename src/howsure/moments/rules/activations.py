"""Smooth scalar functions without a closed form: centred quadrature."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import composite_of, elementwise, pointwise
from howsure.moments.numerics.quadrature import expectation
from howsure.moments.rule import Draw, Kind, Sample, Target, one_of_each_shape, spellings
from howsure.moments.value import Moments


def _gelus(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), approximate="tanh")


def _register(function: Target, *names: str, **options: object) -> None:
    """An elementwise rule under every spelling of `names`."""
    elementwise(function, *spellings(*names), name=names[0], **options)  # pyright: ignore[reportArgumentType]


def _softsign_step(mean: Tensor, step: Tensor) -> Tensor:
    """softsign(mean + step) - softsign(mean) over a common denominator."""
    x = mean + step
    crossed = torch.where(x * mean.sign() < 0, 2 * x * mean.abs(), 0.0)
    return (step + crossed) / ((1 + x.abs()) * (1 + mean.abs()))


def _tanhshrink_step(mean: Tensor, step: Tensor) -> Tensor:
    """(d - tanh d) + tanh(d) tanh(m) tanh(m + d), the first by its series where d is small."""
    square = step.square()
    series = step * square * (1 / 3 - square * (2 / 15 - square * 17 / 315))
    moved = torch.tanh(step)
    alone = torch.where(step.abs() < 0.2, series, step - moved)
    return alone + moved * torch.tanh(mean) * torch.tanh(mean + step)


_register(torch.sigmoid, "sigmoid", "expit", analytic=True)
_register(torch.tanh, "tanh", analytic=True)
_register(F.silu, "silu", analytic=True)
_register(F.mish, "mish", analytic=True)
_register(F.gelu, "gelu", samples=_gelus, analytic=True)
_register(F.logsigmoid, "logsigmoid", "log_sigmoid", analytic=True)
_register(F.softsign, "softsign", deviation=_softsign_step)
_register(F.tanhshrink, "tanhshrink", deviation=_tanhshrink_step)
_register(torch.erf, "erf")
_register(torch.erfc, "erfc")
_register(torch.atan, "atan", "arctan")


def _softpluses(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 2.0, threshold=15.0)


@pointwise("softplus", first=F.softplus, samples=_softpluses, kind=Kind.ELEMENTWISE, error=1e-3)
def softplus(mean: Tensor, var: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Moments:
    """E and Var of softplus(beta x) / beta by centred quadrature, in units of 1 / beta.

    Assumes: independent elements. Exact up to the quadrature's error.

    Source: Gauss-Legendre quadrature, see `howsure.moments.numerics.quadrature`.
    """
    unit, u = partial(F.softplus, threshold=threshold), mean * beta
    out = expectation(unit, u, var * (beta * beta))
    moved = F.softplus(mean, beta, threshold) + (out.mean - unit(u)) / beta
    return Moments(moved, out.var / (beta * beta))


@composite_of(
    "glu",
    inplace=False,
    samples=lambda draw: [Sample(draw.moments(3, 4)), Sample(draw.moments(2, 4, 3), dim=1)],
    error=1e-3,
)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`a sigmoid(b)` for the two halves a and b.

    Assumes: independent halves; exact then, up to the quadrature's error.

    Source: Dauphin et al. 2017; `mul`, `sigmoid`.
    """
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)
