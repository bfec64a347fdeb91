"""One shard: the scores of consecutive rows, computed batch by batch, and its file."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from howsure.reading.source import Source
from howsure.scoring.columns import Columns, columns_of, joined
from howsure.scoring.plan import Span, cut
from howsure.structure import as_call, map_leaves
from howsure.uncertain import Uncertain

NOTES = "__notes__"  # the member of a file that is no column
_MOST_NOTES = 10  # a note that counts something is another one in every batch


@dataclass(frozen=True, eq=False)
class Shard:
    """The scores of some rows.

    Attributes:
        span: Which rows.
        columns: Their scores.
        notes: What the method said about them.
    """

    span: Span
    columns: Columns
    notes: tuple[str, ...]

    def write(self, file: IO[bytes]) -> None:
        """Writes an uncompressed `.npz`."""
        np.savez(file, **self.columns, **{NOTES: np.array(self.notes, dtype=np.str_)})  # pyright: ignore[reportArgumentType]

    def to_bytes(self) -> bytes:
        """The content of its file."""
        buffer = io.BytesIO()
        self.write(buffer)
        return buffer.getvalue()

    @classmethod
    def read(cls, file: Path | IO[bytes], span: Span) -> Shard:
        """The shard in a file that `write` wrote."""
        with np.load(file, allow_pickle=False) as found:
            columns = {name: found[name] for name in found.files if name != NOTES}
            return cls(span, columns, tuple(found[NOTES].tolist()))


def is_whole(path: Path) -> bool:
    """Whether a shard's file is there and every byte of it as it was written."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


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
        for piece in cut(span, self.batch):
            try:
                columns, said = self._scored(piece)
            except (ValueError, TypeError) as error:
                place = f"Rows {piece.start} to {piece.stop - 1}"
                raise type(error)(f"{place}: {error}") from error
            parts.append(columns)
            notes.update(dict.fromkeys(said))
        return Shard(span, joined(parts), first_notes(notes))

    def _scored(self, span: Span) -> tuple[Columns, tuple[str, ...]]:
        inputs = map_leaves(self._on_device, self.source.rows(span.start, span.stop))
        args, kwargs = as_call(inputs)
        prediction = self.sure(*args, **kwargs)
        return columns_of(prediction, len(span), self.level), prediction.notes

    def _on_device(self, leaf: Any) -> Any:
        weight = next(self.sure.model.parameters(), None)
        return leaf.to(weight.device) if isinstance(leaf, Tensor) and weight is not None else leaf


def first_notes(notes: Any) -> tuple[str, ...]:
    """The first of all notes, each once."""
    return tuple(dict.fromkeys(notes))[:_MOST_NOTES]
