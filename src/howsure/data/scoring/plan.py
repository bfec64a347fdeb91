"""How rows are cut: into batches, which decide the numbers, and shards, which do not.

Batches begin at whole multiples of their size, counted from the first row of the data. A row is
so always computed beside the same neighbours, wherever a run was cut and whoever computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BATCHES = 16  # in a shard unless told: about what sampling holds in memory anyway


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop - 1`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Plan:
    """The rows of a data set, cut.

    Attributes:
        rows: How many there are.
        batch: Rows that run through the model at once.
        shard_rows: Rows between two checkpoints, rounded up to whole batches.
    """

    rows: int
    batch: int
    shard_rows: int

    @classmethod
    def of(cls, rows: int, batch: int, shard_rows: int | None) -> Plan:
        """The plan for these sizes; by default a shard has 16 batches."""
        wanted = batch * _BATCHES if shard_rows is None else shard_rows
        for name, value in (("batch", batch), ("shard_rows", wanted)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a whole number of at least 1, not {value!r}.")
        if rows == 0:
            raise ValueError("The data have no rows; there is nothing to predict.")
        return cls(rows, batch, -(-wanted // batch) * batch)

    def shards(self) -> list[Span]:
        """All shards, in order."""
        return list(cut(Span(0, self.rows), self.shard_rows))


def cut(span: Span, size: int) -> Iterator[Span]:
    """The span in pieces of `size` rows; the last may be shorter."""
    for start in range(span.start, span.stop, size):
        yield Span(start, min(start + size, span.stop))
