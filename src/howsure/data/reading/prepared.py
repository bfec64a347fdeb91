"""From a file's numbers to what the model takes: scaled, normalised, in the model's type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


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
        """One clear sentence for each wrong number."""
        for name, values in (("--scale", (self.scale,)), ("--normalize-std", self.std)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                raise ValueError(f"`{name}` must be positive, not {values}.")

    @property
    def computes(self) -> bool:
        """Whether there is something to compute."""
        return self.scale is not None or bool(self.mean or self.std)

    def with_dtype(self, dtype: torch.dtype) -> Preparation:
        """The same for a model of another type."""
        return replace(self, dtype=dtype)

    def __call__(self, array: np.ndarray, name: str, first: int) -> Tensor:
        """A tensor of its own from rows of an array; `first` is the number of the first row."""
        native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        if native.dtype.kind == "f":
            _check_finite(native, name, first)
        elif native.dtype.kind == "u" and native.dtype.itemsize > 1:
            native = native.astype(np.int64)  # torch can do little with large unsigned integers
        x = torch.from_numpy(native)
        if self.computes or x.dtype.is_floating_point:
            x = x.to(self.dtype)
        return self._normalised(x) if self.computes else x

    def _normalised(self, x: Tensor) -> Tensor:
        if self.scale is not None:
            x = x / self.scale
        if self.mean:
            x = x - _along_channels(self.mean, x, "--normalize-mean")
        return x / _along_channels(self.std, x, "--normalize-std") if self.std else x


def _along_channels(values: tuple[float, ...], x: Tensor, option: str) -> Tensor:
    found = torch.tensor(values, dtype=x.dtype)
    if len(values) == 1:
        return found
    if x.dim() < 2 or x.shape[1] != len(values):
        raise ValueError(
            f"`{option}` has {len(values)} numbers for inputs of shape {tuple(x.shape[1:])}; give "
            "one, or one for each channel."
        )
    return found.reshape(-1, *(1,) * (x.dim() - 2))


def _check_finite(array: np.ndarray, name: str, first: int) -> None:
    finite = np.isfinite(array.reshape(len(array), -1)).all(1)
    if not finite.all():
        row = first + int(np.argmin(finite))
        raise ValueError(
            f"Row {row} of {name} contains NaN or infinity (rows count from 0); leave such rows "
            "out, or fix them."
        )
