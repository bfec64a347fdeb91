"""What scoring reports when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ScoreSummary:
    """A finished scoring run.

    Attributes:
        path: The file of scores.
        rows: How many rows it has.
        columns: Name and shape per row of every column.
        resumed_rows: Rows that an earlier, interrupted run had already done.
        seconds: How long this run took.
        notes: What the method said about its predictions; the first ten.
    """

    path: Path
    rows: int
    columns: dict[str, tuple[int, ...]]
    resumed_rows: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The file, its columns and the time, in a few lines."""
        done = self.rows - self.resumed_rows
        lines = [
            f"{self.rows} rows in {self.path}",
            "columns: " + ", ".join(f"{name} {shape}" for name, shape in self.columns.items()),
            f"{done} rows scored in {self.seconds:.1f} s",
        ]
        if self.resumed_rows:
            lines.append(f"{self.resumed_rows} rows taken over from an interrupted run")
        return "\n".join([*lines, *self.notes])
