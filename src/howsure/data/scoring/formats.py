"""Writes scores shard by shard as `.npz`, `.csv` or `.parquet`; never more than one in memory."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from howsure.arrays import Columns, flatten_columns
from howsure.data.scoring.folder import WorkFolder
from howsure.data.scoring.plan import Span
from howsure.data.scoring.shard import NOTES, Shard, first_notes

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


@dataclass(frozen=True, eq=False)
class Finished:
    """All shards of a run.

    Attributes:
        folder: Where they are.
        spans: Their rows, in order.
        layout: Their columns.
    """

    folder: WorkFolder
    spans: Sequence[Span]
    layout: Layout

    def notes(self) -> tuple[str, ...]:
        """The first notes of all shards."""
        return first_notes(
            note for span in self.spans for note in self.folder.column(span, NOTES).tolist()
        )

    def flat(self) -> Iterator[dict[str, np.ndarray]]:
        """The numbers of every shard, (rows,) under each name."""
        for span in self.spans:
            yield flatten_columns(self.folder.read(span).columns)


def write_npz(finished: Finished, file: IO[bytes]) -> None:
    """One uncompressed array per column; equal scores give equal bytes."""
    rows = finished.spans[-1].stop
    with zipfile.ZipFile(file, "w") as archive:
        for name, (dtype, shape) in finished.layout.columns.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3  # as on Unix, wherever it is written
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (rows, *shape),
            }
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array_header_1_0(target, header)
                for span in finished.spans:
                    target.write(finished.folder.column(span, name).tobytes())


def write_csv(finished: Finished, file: IO[bytes]) -> None:
    """A line per row; the shortest digits that give the same numbers again."""
    for index, table in enumerate(finished.flat()):
        if index == 0:
            file.write((",".join(table) + "\n").encode())
        texts = [values.astype(str).tolist() for values in table.values()]
        file.write("".join(",".join(line) + "\n" for line in zip(*texts, strict=True)).encode())


def write_parquet(finished: Finished, file: IO[bytes]) -> None:
    """A column per number, a row group per shard."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    writer = None
    for table in finished.flat():
        # Few readers of Parquet know half precision.
        columns = {name: _at_least_single(values) for name, values in table.items()}
        rows = pa.table(columns)
        writer = writer or pq.ParquetWriter(file, rows.schema)
        writer.write_table(rows)
    assert writer is not None
    writer.close()


def _at_least_single(values: np.ndarray) -> np.ndarray:
    half = values.dtype == np.float16
    return np.ascontiguousarray(values, np.float32 if half else values.dtype)


FORMATS: dict[str, Callable[[Finished, IO[bytes]], None]] = {
    ".npz": write_npz,
    ".csv": write_csv,
    ".parquet": write_parquet,
}


def check_format(suffix: str) -> None:
    """One clear sentence if such a file cannot be written here."""
    if suffix not in FORMATS:
        raise ValueError(f"The result's name must end in one of {list(FORMATS)}, not {suffix!r}.")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError(
            "Parquet files need pyarrow: `pip install 'howsure[parquet]'`, or write `.npz` or "
            "`.csv`."
        )
