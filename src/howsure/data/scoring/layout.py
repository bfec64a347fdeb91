"""Which columns the scores have: the same in every shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from howsure.data.scoring.shard import Shard
from howsure.values.arrays import Columns

MOST_TABLE_COLUMNS = 2000


@dataclass(frozen=True)
class Layout:
    """Type and shape per row of every column."""

    columns: dict[str, tuple[np.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, columns: Columns) -> Layout:
        """The layout of these columns."""
        return cls({name: (each.dtype, each.shape[1:]) for name, each in columns.items()})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape per row of every column."""
        return {name: shape for name, (_, shape) in self.columns.items()}

    def check(self, shard: Shard) -> None:
        """An error if a shard has other columns."""
        found = Layout.of(shard.columns).columns
        for name in {**self.columns, **found}:
            if self.columns.get(name) != found.get(name):
                raise ValueError(
                    f"Rows {shard.span.start} to {shard.span.stop - 1}: the output `{name}` has "
                    f"dtype and shape {found.get(name)}, and {self.columns.get(name)} elsewhere; "
                    "all rows of a file must be alike."
                )

    def check_table(self) -> None:
        """An error if a table would be too wide."""
        count = sum(int(np.prod(shape)) for _, shape in self.columns.values())
        if count > MOST_TABLE_COLUMNS:
            raise ValueError(
                f"A table would have {count} columns; write large outputs to a `.npz` file."
            )
