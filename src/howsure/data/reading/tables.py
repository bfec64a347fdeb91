"""Tables: CSV with a header, and Parquet. Read once, checked whole, kept in a temporary file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from howsure.data.reading.bounded import Limits, spooled_table
from howsure.data.reading.choice import check_names

_ROWS = 4096  # at once


def columns_of(path: Path) -> tuple[str, ...]:
    """The names of a table's columns."""
    if path.suffix == ".parquet":
        return tuple(_parquet(path).schema_arrow.names)
    with _opened(path) as file:
        return _header(csv.reader(file, strict=True), path)


def read_columns(path: Path, names: Sequence[str], limits: Limits) -> np.ndarray:
    """The numbers of some columns, (rows, names); what is not a number is named with its place."""
    check_names(names, columns_of(path), f"`{path}`")
    if path.suffix == ".parquet":
        size = _parquet(path).metadata.num_rows * len(names) * np.dtype(np.float64).itemsize
        limits.check_array(size, f"`{path}`")
        return spooled_table(_from_parquet(path, names), len(names))
    return spooled_table(_from_csv(path, names), len(names))


def read_text(path: Path, name: str) -> list[str]:
    """One column of a CSV file as text."""
    with _opened(path) as file:
        lines = csv.reader(file, strict=True)
        header = _header(lines, path)
        check_names([name], header, f"`{path}`")
        place = header.index(name)
        return [row[place] for row in _complete(lines, header, path)]


def _opened(path: Path) -> IO[str]:
    # Spreadsheets begin a file with a byte order mark, which is not part of the first name.
    return path.open(encoding="utf-8-sig", newline="")


def _header(lines: Iterator[list[str]], path: Path) -> tuple[str, ...]:
    try:
        header = tuple(name.strip() for name in next(lines, []))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` is not a CSV file in UTF-8: {error}.") from None
    if not header:
        raise ValueError(f"`{path}` is empty; the first line must name the columns.")
    if all(_is_number(name) for name in header):
        raise ValueError(
            f"The first line of `{path}` has numbers ({', '.join(header[:3])}, ...); it must name "
            "the columns."
        )
    repeated = [name for name in header if header.count(name) > 1]
    if repeated:
        raise ValueError(f"`{path}` has two columns `{repeated[0]}`; rename one.")
    return header


def _complete(lines: Iterator[list[str]], header: Sequence[str], path: Path) -> Iterator[list[str]]:
    """The rows that are not blank, each as long as the header."""
    number = 0
    try:
        for row in lines:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"Row {number} of `{path}` has {len(row)} values for {len(header)} columns "
                    "(rows count from 0, without the header)."
                )
            yield row
            number += 1
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` cannot be read behind row {number}: {error}.") from None


def _from_csv(path: Path, names: Sequence[str]) -> Iterator[np.ndarray]:
    with _opened(path) as file:
        lines = csv.reader(file, strict=True)
        header = _header(lines, path)
        places = [header.index(name) for name in names]
        rows, first = _complete(lines, header, path), 0
        while block := list(islice(rows, _ROWS)):
            yield _numbers([[row[i] for i in places] for row in block], names, path, first)
            first += len(block)


def _numbers(cells: list[list[str]], names: Sequence[str], path: Path, first: int) -> np.ndarray:
    try:
        return _checked(np.array(cells, dtype=np.float64), names, path, first)
    except ValueError:
        for number, row in enumerate(cells, first):
            for name, cell in zip(names, row, strict=True):
                if not _is_number(cell):
                    raise ValueError(
                        f"Row {number} of `{path}`, column `{name}`: {cell!r} is not a number "
                        "(rows count from 0, without the header)."
                    ) from None
        raise


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _checked(rows: np.ndarray, names: Sequence[str], path: Path, first: int) -> np.ndarray:
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"Row {first + row} of `{path}`, column `{names[column]}`, is NaN, infinite or missing "
            "(rows count from 0); leave such rows out, or fix them."
        )
    return rows


def _from_parquet(path: Path, names: Sequence[str]) -> Iterator[np.ndarray]:
    file, first = _parquet(path), 0
    for batch in _batches(file, names, path):
        columns = [_column(batch.column(i), name, path) for i, name in enumerate(names)]
        yield _checked(np.stack(columns, 1), names, path, first)
        first += batch.num_rows


def _batches(file: Any, names: Sequence[str], path: Path) -> Iterable[Any]:
    try:
        yield from file.iter_batches(batch_size=_ROWS, columns=list(names))
    except (OSError, RuntimeError) as error:
        raise ValueError(f"`{path}` is damaged: {error}") from None


def _column(values: Any, name: str, path: Path) -> np.ndarray:
    found = values.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in "fiub":
        raise ValueError(f"The column `{name}` of `{path}` holds `{values.type}`, not numbers.")
    return found.astype(np.float64)


def _parquet(path: Path) -> Any:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(
            "Parquet files need `pyarrow`, which is not installed; `pip install "
            "'howsure[parquet]'` brings it, or give the table as CSV."
        ) from None
    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"`{path}` is not a Parquet file: {error}") from None
