"""Noise whose elements vary together in a pattern: its std, its axes, and the rows of a batch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.values import Root, Value, check, like, rows_first, wide


@dataclass(frozen=True)
class Row:
    """The shape of one input, and where the axes of a batch are in it."""

    shape: tuple[int, ...]
    batch_dim: int | None

    @classmethod
    def of(cls, x: Tensor, batch_dim: int | None) -> Row:
        """Of a batch whose inputs are counted by `batch_dim`."""
        if batch_dim is None:
            return cls(tuple(x.shape), None)
        first = batch_dim % x.dim()
        return cls((*x.shape[:first], *x.shape[first + 1 :]), first)

    def at(self, axis: int) -> int:
        """The axis of the batch as one of a row, counted from the end: -1 is the last."""
        if not isinstance(axis, int):
            raise TypeError(f"The axis of a noise is {axis!r}; give the number of an axis.")
        dims = len(self.shape) + (self.batch_dim is not None)
        if not -dims <= axis < dims:
            raise ValueError(
                f"The noise goes along axis {axis}, and the input has {dims} axes; name one of "
                f"them, from {-dims} to {dims - 1}."
            )
        if axis % dims == self.batch_dim:
            raise ValueError(
                f"The noise goes along axis {axis}, which counts the inputs of a batch, and these "
                "have noise of their own; name another axis, or say `batch_dim=None` if a call is "
                "one input."
            )
        own = axis % dims
        before = self.batch_dim is not None and own > self.batch_dim
        return own - before - len(self.shape)


@dataclass(frozen=True, eq=False)
class Pattern(Noise):
    """A pattern that depends on the shape of an input alone, times a std."""

    std: Value

    def __post_init__(self) -> None:
        check("std", self.std)

    @abstractmethod
    def pattern(self, row: Row) -> Root:
        """The root for a std of 1."""

    def var_at(self, x: Tensor) -> Tensor:
        """std**2, for patterns of variance 1."""
        return like(self.std, x).square()

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """Std times the pattern."""
        self(x)  # an error in one sentence if the std does not broadcast to the input
        std = rows_first(like(self.std, wide(x)), x, batch_dim)
        return self.pattern(Row.of(x, batch_dim)).times(std)
