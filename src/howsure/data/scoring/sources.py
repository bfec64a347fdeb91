"""Data in memory and torch data sets as sources of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from howsure.data.reading.source import Inputs, Source
from howsure.trees import map_leaves


def as_source(data: Any) -> Source:
    """The data as a source of rows.

    Args:
        data: A source itself; a tensor or array of shape (rows, ...); a tuple of them (the
            model's arguments by position) or a dict (by name); or a torch data set with a
            length, whose items are inputs or pairs (inputs, target).
    """
    if hasattr(data, "rows") and hasattr(data, "__len__"):
        return data
    if isinstance(data, (Tensor, np.ndarray, tuple, Mapping)):
        return InMemory(dict(data) if isinstance(data, Mapping) else data)
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise TypeError(
            f"A {type(data).__name__} gives its items in one order only, and scoring asks for "
            "rows by number, so that it can continue; give a tensor, an array, a data set with "
            "`__len__` and `__getitem__`, or an object with `__len__` and `rows`."
        )
    return Items(data)


@dataclass(frozen=True, eq=False)
class InMemory:
    """Tensors or arrays, also memory-mapped ones, whose first axis counts the rows."""

    data: Any

    def __post_init__(self) -> None:
        """All must have the same number of rows."""
        for column in self._columns():
            if not isinstance(column, (Tensor, np.ndarray)) or column.ndim == 0:
                raise TypeError(
                    "Data in memory must be tensors or arrays of shape (rows, ...), not "
                    f"{type(column).__name__}."
                )
        lengths = [len(column) for column in self._columns()]
        if not lengths or len(set(lengths)) > 1:
            raise ValueError(f"All inputs must have the same number of rows, not {lengths}.")

    def _columns(self) -> list[Any]:
        if isinstance(self.data, dict):
            return list(self.data.values())
        return list(self.data) if isinstance(self.data, tuple) else [self.data]

    def __len__(self) -> int:
        return len(self._columns()[0])

    def rows(self, start: int, stop: int) -> Inputs:
        """The rows as tensors."""

        def tensor(column: Any) -> Tensor:
            part = column[start:stop]
            # Copied: torch would warn that a memory-mapped file cannot be written to.
            return part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))

        return map_leaves(tensor, self.data)


@dataclass(frozen=True, eq=False)
class Items:
    """A torch data set with a length; targets are left aside."""

    data: Dataset[object]

    def __len__(self) -> int:
        return len(self.data)  # pyright: ignore[reportArgumentType]

    def rows(self, start: int, stop: int) -> Inputs:
        """The items' inputs, collated as a `DataLoader` does."""
        items = default_collate([_inputs(self.data[i]) for i in range(start, stop)])
        return tuple(items) if isinstance(items, list) else items


def _inputs(item: object) -> object:
    """The inputs of an item: all of it, or the first of (inputs, target)."""
    return item[0] if isinstance(item, (tuple, list)) and len(item) == 2 else item
