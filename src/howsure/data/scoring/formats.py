"""Writes predictions shard by shard as `.npz`, `.csv` or `.parquet`; one shard in memory."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TypeAlias

import numpy as np

from howsure.arrays import Columns, flatten_columns

MOST_TABLE_COLUMNS = 2000

# The columns of every shard; iterated more than once.
Shards: TypeAlias = Iterable[Mapping[str, np.ndarray]]
# Type and shape per row of every column.
Layout: TypeAlias = dict[str, tuple[np.dtype, tuple[int, ...]]]


def check_format(suffix: str) -> None:
    """One clear sentence if such a file cannot be written here."""
    if suffix not in WRITERS:
        raise ValueError(f"The result's name must end in one of {list(WRITERS)}, not {suffix!r}.")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            "Parquet files need `pyarrow`, which is not installed: `pip install 'howsure[cli]'`; "
            "or write `.npz` or `.csv`."
        )


def check_width(suffix: str, columns: Columns) -> None:
    """An error if a table would be too wide."""
    count = sum(column[0].size for column in columns.values())
    if suffix != ".npz" and count > MOST_TABLE_COLUMNS:
        raise ValueError(
            f"A table would have {count} columns; write large outputs to a `.npz` file."
        )


def write_npz(shards: Shards, layout: Layout, file: IO[bytes]) -> None:
    """One uncompressed array per column; equal predictions give equal bytes."""
    rows = sum(len(shard[next(iter(layout))]) for shard in shards)
    with zipfile.ZipFile(file, "w") as archive:
        for name, (dtype, shape) in layout.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3  # as on Unix, wherever it is written
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (rows, *shape),
            }
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array_header_1_0(target, header)
                for shard in shards:
                    target.write(shard[name].tobytes())


def _tables(shards: Shards, layout: Layout) -> Iterator[Columns]:
    """A column of numbers for every element, shard by shard."""
    for shard in shards:
        yield flatten_columns({name: shard[name] for name in layout})


def write_csv(shards: Shards, layout: Layout, file: IO[bytes]) -> None:
    """A line per row; the shortest digits that give the same numbers again."""
    for index, table in enumerate(_tables(shards, layout)):
        if index == 0:
            file.write((",".join(table) + "\n").encode())
        texts = [values.astype(str).tolist() for values in table.values()]
        file.write("".join(",".join(line) + "\n" for line in zip(*texts, strict=True)).encode())


def write_parquet(shards: Shards, layout: Layout, file: IO[bytes]) -> None:
    """A column per number, a row group per shard."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    writer = None
    for table in _tables(shards, layout):
        for name, values in table.items():
            # Few readers of Parquet know half precision.
            kind = np.float32 if values.dtype == np.float16 else values.dtype
            table[name] = np.ascontiguousarray(values, kind)
        rows = pa.table(table)
        writer = writer or pq.ParquetWriter(file, rows.schema)
        writer.write_table(rows)
    assert writer is not None
    writer.close()


WRITERS: dict[str, Callable[[Shards, Layout, IO[bytes]], None]] = {
    ".npz": write_npz,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
