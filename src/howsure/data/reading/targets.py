"""The target: an array beside the inputs, columns, a file of its own, or what images come with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from howsure.data.reading.bounded import Limits
from howsure.data.reading.choice import check_names
from howsure.data.reading.npy import open_npy
from howsure.data.reading.tables import columns_of, read_columns, read_text

_TARGET = "y"  # the key or column that means the target unless another is named
FOLDERS = "folders"
_FILE = "file"


@dataclass(frozen=True)
class Target:
    """Where the target is.

    Attributes:
        names: Key or columns in the data's own file.
        file: A `.npy` file of its own.
        missing: The error if there is none.
    """

    names: tuple[str, ...] = ()
    file: Path | None = None
    missing: str = ""

    def reader(self, read: Callable[[tuple[str, ...]], np.ndarray]) -> Callable[[], np.ndarray]:
        """Reads the target, its names by `read`."""
        return lambda: self._read(read)

    def _read(self, read: Callable[[tuple[str, ...]], np.ndarray]) -> np.ndarray:
        if self.file is not None:
            return open_npy(self.file)
        if not self.names:
            raise ValueError(self.missing)
        return read(self.names)


def target_names(asked: str | None, found: Sequence[str], what: str) -> Target:
    """Where a target is, from what the user said and what the file has."""
    if asked is None:
        missing = f"{what} has no `{_TARGET}`; say with `--target` what the true values are."
        return Target((_TARGET,)) if _TARGET in found else Target(missing=missing)
    if asked.endswith(".npy"):
        return Target(file=_existing(asked))
    names = tuple(name.strip() for name in asked.split(","))
    check_names(names, found, what)
    return Target(names)


def image_target(asked: str | None, folder: Path, files: Sequence[Path]) -> np.ndarray:
    """The target of every image: classes by folder, values by file name, or an array."""
    if asked == FOLDERS:
        return _classes(folder, files)
    if asked is not None and asked.endswith(".npy"):
        return open_npy(_existing(asked))
    if asked is not None and asked.endswith(".csv"):
        return _values(_existing(asked), folder, files)
    raise ValueError(
        f"A folder of images has its targets elsewhere: `--target {FOLDERS}` for classes named by "
        f"the folders in it, `--target VALUES.csv` with a column `{_FILE}`, or `--target FILE.npy`."
    )


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` for the target.")
    return path


def _classes(folder: Path, files: Sequence[Path]) -> np.ndarray:
    parents = [path.relative_to(folder).parts[0] for path in files]
    loose = [path for path in files if path.parent == folder]
    if loose:
        raise ValueError(f"`{loose[0]}` is in no folder of a class.")
    names = sorted(set(parents))
    return np.array([names.index(name) for name in parents], dtype=np.int64)


def _values(table: Path, folder: Path, files: Sequence[Path]) -> np.ndarray:
    names = [name for name in columns_of(table) if name != _FILE]
    if not names:
        raise ValueError(f"`{table}` has no column of values beside `{_FILE}`.")
    places = {name: i for i, name in enumerate(read_text(table, _FILE))}
    wanted = [path.relative_to(folder).as_posix() for path in files]
    missing = [name for name in wanted if name not in places]
    if missing:
        raise ValueError(f"`{table}` has no row for the image `{missing[0]}`.")
    values = read_columns(table, names, Limits())[[places[name] for name in wanted]]
    return values[:, 0] if len(names) == 1 else values
