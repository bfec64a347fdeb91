"""Smooth scalar functions without a closed form: centred quadrature."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional as F

from howsure.families import elementwise
from howsure.registry import Target, spellings
from howsure.samples import Draw, Sample, one_of_each_shape


def _gelus(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), approximate="tanh")


def _softpluses(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 2.0, threshold=15.0)


def _alphas(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 0.7)


def _register(function: Target, *names: str, **options: object) -> None:
    """An elementwise rule under every spelling of `names`."""
    elementwise(function, *spellings(*names), name=names[0], **options)  # pyright: ignore[reportArgumentType]


_register(torch.sigmoid, "sigmoid", "expit", analytic=True)
_register(torch.tanh, "tanh", analytic=True)
_register(F.silu, "silu", analytic=True)
_register(F.mish, "mish", analytic=True)
_register(F.gelu, "gelu", samples=_gelus, analytic=True)
# Its `beta` may make the bend as sharp as one likes.
_register(F.softplus, "softplus", samples=_softpluses)
_register(F.logsigmoid, "logsigmoid", "log_sigmoid", analytic=True)
_register(F.softsign, "softsign")
_register(F.tanhshrink, "tanhshrink")
# The aten overloads of `elu` take more arguments, see `exported`.
elementwise(F.elu, torch.nn.functional.elu_, name="elu", samples=_alphas)
_register(F.celu, "celu", samples=_alphas)
_register(F.selu, "selu")
_register(torch.erf, "erf")
_register(torch.erfc, "erfc")
_register(torch.atan, "atan", "arctan")
