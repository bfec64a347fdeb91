"""Noise along time: a decaying memory, and a walk."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.noise.pattern import Pattern, Row
from howsure.noise.values import Root, as_value


@dataclass(frozen=True, eq=False)
class Ar1(Pattern):
    """Noise whose correlation falls by the same factor with every step along an axis."""

    kind: ClassVar[str] = "ar1"
    correlation: float
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.correlation, int | float) or not -1 < self.correlation < 1:
            raise ValueError(
                f"`correlation` is {self.correlation!r}; it must be a number between -1 and 1. If "
                "it is 1, the noise is an offset, `common_mode`, or a walk, `random_walk`."
            )

    def pattern(self, row: Row) -> Root:
        """e[0] = z[0], e[t] = correlation e[t - 1] + sqrt(1 - correlation**2) z[t]."""
        at, factor = row.at(self.axis), float(self.correlation)
        fresh = (1 - factor**2) ** 0.5

        def apply(z: Tensor, rows: slice | Tensor) -> Tensor:
            moved = z.movedim(at, -1)
            start, rest = moved[..., :1], moved[..., 1:]
            return _with_memory(torch.cat([start, fresh * rest], -1), factor).movedim(-1, at)

        return Root(row.shape, apply)


def _with_memory(x: Tensor, factor: float) -> Tensor:
    """y[t] = x[t] + factor y[t - 1] along the last axis, by doubling: log2 of its length steps.

    After a step of length k, y[t] holds the last 2 k terms of the sum of factor**j x[t - j].
    """
    step, length = 1, x.shape[-1]
    # Beyond, what is remembered is below rounding.
    while step < length and abs(factor) ** step > torch.finfo(x.dtype).eps:
        x = x + factor**step * F.pad(x[..., :-step], (step, 0))
        step *= 2
    return x


@dataclass(frozen=True, eq=False)
class RandomWalk(Pattern):
    """Noise that adds up steps of the given std along an axis."""

    kind: ClassVar[str] = "random_walk"
    axis: int = 1

    def var_at(self, x: Tensor) -> Tensor:
        """std**2 t for the t-th reading, from 1 on."""
        at = Row.of(x, None).at(self.axis)
        count = torch.arange(1, x.shape[at] + 1, dtype=x.dtype, device=x.device)
        return super().var_at(x) * count.reshape(-1, *(1,) * (-at - 1))

    def pattern(self, row: Row) -> Root:
        """The sums of z up to each reading."""
        at = row.at(self.axis)
        return Root(row.shape, lambda z, rows: z.cumsum(at))


def ar1(std: object, correlation: float, axis: int = 1) -> Ar1:
    """Noise with a memory, first-order autoregressive: correlation**k between readings k apart.

    A slowly varying bias with time constant tau, read every dt: correlation exp(-dt / tau).

    Args:
        std: Standard deviation of every reading: a number, or a tensor that broadcasts to the
            input.
        correlation: Of neighbouring readings, between -1 and 1.
        axis: The axis that counts the readings; 1 in a batch of sequences (batch, time, features).
    """
    number = float(correlation) if isinstance(correlation, Real) else correlation
    return Ar1(as_value(std, "std"), number, axis)


def random_walk(std: object, axis: int = 1) -> RandomWalk:
    """Noise that walks: a bias that starts from 0 and takes one step before every reading.

    The variance of the t-th reading is std**2 t. Add a `common_mode` if the bias does not start
    from 0.

    Args:
        std: Standard deviation of a step.
        axis: The axis that counts the readings; 1 in a batch of sequences (batch, time, features).
    """
    return RandomWalk(as_value(std, "std"), axis)
