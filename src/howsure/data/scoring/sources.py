"""Data in memory and torch data sets as sources of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from howsure.data.reading.source import Inputs, Source
from howsure.data.scoring.digest import digest
from howsure.trees import map_leaves

_PROBED = 32  # items by which a data set is recognised


def as_source(data: Any) -> Source:
    """The data as a source of rows.

    Args:
        data: A source itself; a tensor or array of shape (rows, ...); a tuple of them (the
            model's arguments by position) or a dict (by name); or a torch data set with a
            length, whose items are inputs or pairs (inputs, target).
    """
    if all(hasattr(data, name) for name in ("rows", "fingerprint", "__len__")):
        return data
    if isinstance(data, (Tensor, np.ndarray, tuple, Mapping)):
        return InMemory(map_leaves(_as_column, dict(data) if isinstance(data, Mapping) else data))
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise TypeError(
            f"A {type(data).__name__} gives its items in one order only, and scoring asks for "
            "rows by number, so that it can continue; give a tensor, an array, a data set with "
            "`__len__` and `__getitem__`, or an object with `__len__`, `rows` and `fingerprint`."
        )
    return Items(data)


def _as_column(leaf: object) -> object:
    if not isinstance(leaf, (Tensor, np.ndarray)) or leaf.ndim == 0:
        raise TypeError(
            "Data in memory must be tensors or arrays of shape (rows, ...), not "
            f"{type(leaf).__name__}."
        )
    return leaf


@dataclass(frozen=True, eq=False)
class InMemory:
    """Tensors or arrays, also memory-mapped ones, whose first axis counts the rows."""

    data: Any

    def __post_init__(self) -> None:
        """One clear sentence where columns differ in length."""
        lengths = [len(column) for column in _columns(self.data)]
        if not lengths or len(set(lengths)) > 1:
            raise ValueError(f"All inputs must have the same number of rows, not {lengths}.")

    def __len__(self) -> int:
        return len(_columns(self.data)[0])

    def rows(self, start: int, stop: int) -> Inputs:
        """The rows as tensors."""
        return map_leaves(lambda column: _as_tensor(column[start:stop]), self.data)

    def fingerprint(self) -> str:
        """A digest of every number."""
        return digest(self.data)


def _columns(data: object) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, tuple) else [data]


def _as_tensor(rows: object) -> Tensor:
    # Copied: torch would warn that a memory-mapped file cannot be written to.
    return rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows))


@dataclass(frozen=True, eq=False)
class Items:
    """A torch data set with a length; targets are left aside.

    Its fingerprint is that of some items, so a run that resumes looks at the inputs of every
    finished shard.
    """

    data: Dataset[object]
    is_probed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.data)  # pyright: ignore[reportArgumentType]

    def rows(self, start: int, stop: int) -> Inputs:
        """The items' inputs, collated as a `DataLoader` does."""
        items = default_collate([_inputs(self.data[i]) for i in range(start, stop)])
        return tuple(items) if isinstance(items, list) else items

    def fingerprint(self) -> str:
        """A digest of the length and of some items; to read all of them could take hours."""
        count = len(self)
        chosen = sorted({round(i * (count - 1) / (_PROBED - 1)) for i in range(_PROBED)})
        return digest([count, [_inputs(self.data[i]) for i in chosen if count]])


def _inputs(item: object) -> object:
    """The inputs of an item: all of it, or the first of (inputs, target)."""
    return item[0] if isinstance(item, (tuple, list)) and len(item) == 2 else item
