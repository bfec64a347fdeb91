"""A source of rows that lie in arrays, in memory or mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from howsure.data.reading.prepared import Preparation
from howsure.data.reading.source import Inputs

_BLOCK = 16 * 2**20  # bytes that are hashed at once


@dataclass(frozen=True, eq=False)
class Part:
    """One input: an array, or some columns of it.

    Attributes:
        argument: The model's argument; "" for the only one.
        name: What it is called in messages.
        array: Rows first.
        columns: Positions of the columns that make the input; `None` for all of the array.
    """

    argument: str
    name: str
    array: np.ndarray
    columns: tuple[int, ...] | None = None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Some rows, as they lie in the file."""
        found = self.array[start:stop]
        return found if self.columns is None else found[:, self.columns]

    @property
    def block(self) -> int:
        """How many rows make some megabytes."""
        return max(1, _BLOCK // max(1, self.array.nbytes // max(1, len(self.array))))


class ArraySource:
    """Rows of one or several arrays of the same length."""

    def __init__(self, parts: Sequence[Part], preparation: Preparation) -> None:
        self.parts = tuple(parts)
        self.preparation = preparation
        for part in self.parts:
            if part.array.ndim == 0:
                raise ValueError(f"{part.name} is a single number; give an array with rows.")
        lengths = {len(part.array) for part in self.parts}
        if len(lengths) > 1:
            counts = ", ".join(f"{part.name}: {len(part.array)}" for part in self.parts)
            raise ValueError(f"The inputs differ in their number of rows ({counts}).")
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def rows(self, start: int, stop: int) -> Inputs:
        """A tensor; a dict by argument where the arguments have names."""
        found = {part.argument: self._tensor(part, start, stop) for part in self.parts}
        only = found.get("")
        return found if only is None else only

    def _tensor(self, part: Part, start: int, stop: int) -> Tensor:
        return self.preparation(part.rows(start, stop), part.name, start)

    def fingerprint(self) -> str:
        """The SHA-256 of everything that the model sees; reads all rows, and so checks them."""
        digest = hashlib.sha256(repr(self.preparation).encode())
        for part in self.parts:
            for start in range(0, len(self), part.block):
                tensor = self._tensor(part, start, min(start + part.block, len(self)))
                digest.update(f"{part.argument} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
