"""The predictions of consecutive rows, computed batch by batch, and their file.

Batches begin at whole multiples of their size, counted from the first row of the data. A row is
therefore always computed in the same batch, wherever a run was cut and whoever computes it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from torch import Tensor

from howsure.arrays import Columns, columns_of, join_columns
from howsure.data.reading.source import Inputs, Source
from howsure.data.scoring.identity import digest
from howsure.trees import as_call, map_leaves
from howsure.uncertain import Uncertain

_NOTES, _INPUTS = "__notes__", "__inputs__"  # the members of a file that are no columns
_MOST_NOTES = 10  # a note that counts something is another one in every batch


@dataclass(frozen=True, eq=False)
class Shard:
    """The predictions of some rows.

    Attributes:
        columns: An array for each name.
        notes: What the method said about them.
        inputs: The digest of their inputs.
    """

    columns: Columns
    notes: tuple[str, ...]
    inputs: str

    def to_bytes(self) -> bytes:
        """An uncompressed `.npz`."""
        buffer = io.BytesIO()
        others = {_NOTES: np.array(self.notes, dtype=np.str_), _INPUTS: np.array(self.inputs)}
        np.savez(buffer, **self.columns, **others)  # pyright: ignore[reportArgumentType]
        return buffer.getvalue()

    @classmethod
    def read(cls, file: IO[bytes]) -> Shard:
        """The shard in a file that holds `to_bytes`."""
        with np.load(file, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
        notes, inputs = columns.pop(_NOTES), columns.pop(_INPUTS)
        return cls(columns, tuple(notes.tolist()), str(inputs))


@dataclass(frozen=True, eq=False)
class Scorer:
    """Turns numbers of rows into predictions; may be sent to another process.

    Attributes:
        sure: The model with its noise and method.
        source: The data.
        batch: Rows that run through the model at once.
        level: Level of the intervals, if they are wanted.
    """

    sure: Uncertain
    source: Source
    batch: int
    level: float | None = None

    def shard(self, rows: range) -> Shard:
        """The predictions of rows whose first begins a batch."""
        columns, notes, digests = [], [], []
        for piece in cut(rows, self.batch):
            inputs = self._inputs(piece)
            digests.append(digest(inputs))
            with torch.no_grad(), _naming(piece):
                args, kwargs = as_call(map_leaves(self._on_device, inputs))
                prediction = self.sure(*args, **kwargs)
                columns.append(columns_of(prediction.to_dict(self.level), len(piece)))
            notes += prediction.notes
        return Shard(join_columns(columns), first_notes(notes), digest(digests))

    def inputs_digest(self, rows: range) -> str:
        """What `shard(rows).inputs` would be, without running the model."""
        return digest([digest(self._inputs(piece)) for piece in cut(rows, self.batch)])

    def _inputs(self, rows: range) -> Inputs:
        with _naming(rows):
            return self.source.rows(rows.start, rows.stop)

    def _on_device(self, leaf: object) -> object:
        weight = next(self.sure.model.parameters(), None)
        return leaf.to(weight.device) if isinstance(leaf, Tensor) and weight is not None else leaf


@contextmanager
def _naming(rows: range) -> Iterator[None]:
    """Puts the rows before the message of an error."""
    try:
        yield
    except (ValueError, TypeError) as error:
        which = f"Rows {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"Row {rows[0]}"
        raise type(error)(f"{which}: {error}") from error


def cut(rows: range, size: int) -> list[range]:
    """The rows in pieces of `size`; the last may be shorter."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def first_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """The first of all notes, each once."""
    return tuple(dict.fromkeys(notes))[:_MOST_NOTES]
