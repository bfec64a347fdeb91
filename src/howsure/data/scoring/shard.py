"""One shard: the scores of consecutive rows, computed batch by batch, and its file."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from howsure.arrays import Columns, columns_of, join_columns
from howsure.data.reading.source import Source
from howsure.data.scoring.digest import digest
from howsure.data.scoring.plan import Span, cut
from howsure.trees import as_call, map_leaves
from howsure.uncertain import Uncertain

NOTES, INPUTS = "__notes__", "__inputs__"  # the members of a file that are no columns
_MOST_NOTES = 10  # a note that counts something is another one in every batch


@dataclass(frozen=True, eq=False)
class Shard:
    """The scores of some rows.

    Attributes:
        span: Which rows.
        columns: Their scores.
        notes: What the method said about them.
        inputs: The digest of their inputs.
    """

    span: Span
    columns: Columns
    notes: tuple[str, ...]
    inputs: str

    def to_bytes(self) -> bytes:
        """An uncompressed `.npz`."""
        buffer = io.BytesIO()
        others = {NOTES: np.array(self.notes, dtype=np.str_), INPUTS: np.array(self.inputs)}
        np.savez(buffer, **self.columns, **others)  # pyright: ignore[reportArgumentType]
        return buffer.getvalue()

    @classmethod
    def read(cls, file: Path | IO[bytes], span: Span) -> Shard:
        """The shard in a file that holds `to_bytes`."""
        with np.load(file, allow_pickle=False) as found:
            columns = {name: found[name] for name in found.files if name not in (NOTES, INPUTS)}
            return cls(span, columns, tuple(found[NOTES].tolist()), str(found[INPUTS]))


@dataclass(frozen=True, eq=False)
class Scorer:
    """Everything that turns row numbers into scores; may be sent to another process.

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

    @torch.no_grad()
    def shard(self, span: Span) -> Shard:
        """The scores of a shard, whose first row begins a batch."""
        parts: list[Columns] = []
        notes: dict[str, None] = {}
        seen: list[str] = []
        for piece in cut(span, self.batch):
            try:
                inputs = self.source.rows(piece.start, piece.stop)
                seen.append(digest(inputs))
                columns, said = self._scored(inputs, len(piece))
            except (ValueError, TypeError) as error:
                place = f"Rows {piece.start} to {piece.stop - 1}"
                raise type(error)(f"{place}: {error}") from error
            parts.append(columns)
            notes.update(dict.fromkeys(said))
        return Shard(span, join_columns(parts), first_notes(notes), digest(seen))

    def is_current(self, shard: Shard) -> bool:
        """Whether a shard's inputs are still the same; a fingerprint of all data says so, too."""
        if not getattr(self.source, "is_probed", False):
            return True
        pieces = cut(shard.span, self.batch)
        seen = [digest(self.source.rows(piece.start, piece.stop)) for piece in pieces]
        return shard.inputs == digest(seen)

    def _scored(self, inputs: object, rows: int) -> tuple[Columns, tuple[str, ...]]:
        args, kwargs = as_call(map_leaves(self._on_device, inputs))
        prediction = self.sure(*args, **kwargs)
        return columns_of(prediction.to_dict(self.level), rows), prediction.notes

    def _on_device(self, leaf: object) -> object:
        weight = next(self.sure.model.parameters(), None)
        return leaf.to(weight.device) if isinstance(leaf, Tensor) and weight is not None else leaf


def first_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """The first of all notes, each once."""
    return tuple(dict.fromkeys(notes))[:_MOST_NOTES]
