"""Rows of input data by number, and what is done to them before the model sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

# What a model takes: one tensor, several by position, or several by name. Rows come first.
Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


class Source(Protocol):
    """Rows of input data, read when they are asked for; any object with these methods will do."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def rows(self, start: int, stop: int) -> Inputs:
        """The inputs of rows start to stop - 1; the same numbers give the same rows, always."""
        ...


@dataclass(frozen=True)
class Preparation:
    """(x / scale - mean) / std, in the model's floating-point type.

    Integers stay integers (a model may look them up) unless there is something to compute.

    Attributes:
        scale: By what everything is divided first: 255 for 8-bit images.
        mean: Subtracted then: a number, or one per channel (dimension 1).
        std: By what is divided last, likewise.
        dtype: The model's type; floating-point data is converted to it.
    """

    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Refuses to divide by zero."""
        for name, values in (("--scale", (self.scale,)), ("--normalize-std", self.std)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                raise ValueError(f"`{name}` must be positive, not {values}.")

    def __call__(self, array: np.ndarray, name: str, first: int) -> Tensor:
        """A tensor from rows of an array; `first` is the number of the first row."""
        finite = np.isfinite(array).reshape(len(array), -1).all(1)
        if not finite.all():
            raise ValueError(
                f"Row {first + int(np.argmin(finite))} of {name} contains NaN or infinity (rows "
                "count from 0); leave such rows out, or fix them."
            )
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)  # torch can do little with large unsigned integers
        x = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        computes = self.scale is not None or self.mean or self.std
        if computes or x.dtype.is_floating_point:
            x = x.to(self.dtype)
        if self.scale is not None:
            x = x / self.scale
        if self.mean:
            x = x - _along_channels(self.mean, x, "--normalize-mean")
        return x / _along_channels(self.std, x, "--normalize-std") if self.std else x


def _along_channels(values: tuple[float, ...], x: Tensor, option: str) -> Tensor:
    numbers = torch.tensor(values, dtype=x.dtype)
    if len(values) == 1:
        return numbers
    if x.dim() < 2 or x.shape[1] != len(values):
        raise ValueError(
            f"`{option}` has {len(values)} numbers for inputs of shape {tuple(x.shape[1:])}; give "
            "one, or one for each channel."
        )
    return numbers.reshape(-1, *(1,) * (x.dim() - 2))
