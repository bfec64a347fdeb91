"""Tables: CSV with a header, and Parquet, streamed by pyarrow into a temporary file of numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from howsure.data.reading.arrays import MAX_ARRAY_BYTES, check_size


def columns_of(path: Path) -> dict[str, str]:
    """The columns of a table: their names without spaces around them, and as the file has them."""
    schema = _parquet(path).schema_arrow if path.suffix == ".parquet" else _csv(path).schema
    try:
        names = {name.strip(): name for name in schema.names}
    except UnicodeDecodeError as error:
        raise ValueError(f"The names of columns in `{path}` are not UTF-8: {error}.") from None
    if len(names) < len(schema.names):
        raise ValueError(f"`{path}` has two columns of the same name; rename one.")
    if all(_is_number(name) for name in names):
        raise ValueError(
            f"The first line of `{path}` has numbers ({', '.join(list(names)[:3])}, ...); it must "
            "name the columns."
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_columns(path: Path, names: Sequence[str], max_bytes: int | None = None) -> np.ndarray:
    """The numbers of some columns, (rows, names) of float64, mapped from a temporary file."""
    rows = 0
    with tempfile.TemporaryFile() as file:
        for block in _blocks(path, names, max_bytes):
            file.write(np.ascontiguousarray(block, dtype=np.float64).tobytes())
            rows += len(block)
        file.flush()
        if not rows:
            return np.empty((0, len(names)))
        return np.memmap(file, np.float64, "r", 0, (rows, len(names)))


def _blocks(path: Path, names: Sequence[str], max_bytes: int | None) -> Iterator[np.ndarray]:
    """The columns in pieces (rows, names)."""
    own = columns_of(path)
    chosen = [own[name] for name in names]
    if path.suffix == ".parquet":
        file = _parquet(path)
        size = file.metadata.num_rows * len(names) * np.dtype(np.float64).itemsize
        check_size(size, max_bytes or MAX_ARRAY_BYTES, f"`{path}`")
        batches = file.iter_batches(columns=chosen)
    else:
        float64 = import_module("pyarrow").float64()
        batches = _csv(path, dict.fromkeys(chosen, float64))
    try:
        for batch in batches:
            yield np.stack([_numbers(batch.column(name), name, path) for name in chosen], 1)
    # pyarrow's own errors are ValueErrors, OSErrors or neither.
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"`{path}` cannot be read: {str(error).splitlines()[0]}") from None


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"the column `{name}` holds `{column.type}`, not numbers.")
    return values


def read_text(path: Path, name: str) -> list[str]:
    """One column of a CSV file as text."""
    column = columns_of(path)[name]
    batches = _csv(path, {column: import_module("pyarrow").string()})
    return [text for batch in batches for text in batch.column(column).to_pylist()]


def _csv(path: Path, types: dict[str, Any] | None = None) -> Any:
    """A reader of a CSV file; of the named columns alone, in the given types."""
    csv = _import("pyarrow.csv")
    try:
        return csv.open_csv(
            path,
            # One thread names the row of an error.
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types or ()), null_values=[]
            ),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"`{path}` cannot be read as CSV: {str(error).splitlines()[0]}") from None


def _parquet(path: Path) -> Any:
    parquet = _import("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"`{path}` is not a Parquet file: {error}") from None


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(
            "Tables need `pyarrow`, which is not installed: `pip install 'howsure[cli]'`."
        ) from None
