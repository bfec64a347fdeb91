"""Opens a data file or folder: a source of inputs, and the target where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from howsure.data.reading.arrays import ArraySource, Part
from howsure.data.reading.choice import Choice, Group
from howsure.data.reading.images import ImageSource, image_files
from howsure.data.reading.npy import open_npy
from howsure.data.reading.npz import keys_of, open_array
from howsure.data.reading.source import Inputs, Source
from howsure.data.reading.tables import columns_of, read_columns
from howsure.data.reading.targets import image_target, target_names

_INPUT = "x"  # the key that means the input where there are several arrays
KINDS = "`.npz`, `.npy`, `.csv`, `.parquet`, or a folder of images"


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs, and how to get the target.

    Attributes:
        source: The inputs, by row.
        read_target: Reads the target; one clear sentence if there is none.
    """

    source: Source
    read_target: Callable[[], np.ndarray]

    def target(self) -> Tensor:
        """The target of every row: floats in the source's precision, integers as they are."""
        found = np.ascontiguousarray(self.read_target())
        if len(found) != len(self.source):
            raise ValueError(f"There are {len(self.source)} rows and {len(found)} targets.")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            row = int(np.argwhere(~np.isfinite(found))[0][0])
            raise ValueError(f"The target of row {row} is NaN or infinite (rows count from 0).")
        native = found.astype(found.dtype.newbyteorder("="))
        return torch.from_numpy(native.astype(np.int64) if native.dtype.kind in "iub" else native)


def open_data(path: str | Path, choice: Choice) -> Data:
    """The data of a file or folder; sizes that it declares are checked before anything is read."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder `{path}`.")
    if path.is_dir():
        data = _images(path, choice)
    elif path.suffix in _READERS:
        data = _READERS[path.suffix](path, choice)
    else:
        raise ValueError(f"howsure cannot read `{path}`; give {KINDS}.")
    if len(data.source) == 0:
        raise ValueError(f"`{path}` has no rows.")
    return replace(data, source=FromFile(path.resolve(), choice, data.source))


@dataclass(frozen=True, eq=False)
class FromFile:
    """A source that travels to another process as its file's name, and is opened again there."""

    path: Path
    choice: Choice
    opened: Source

    def __len__(self) -> int:
        return len(self.opened)

    def rows(self, start: int, stop: int) -> Inputs:
        """The rows of the opened source."""
        return self.opened.rows(start, stop)

    def fingerprint(self) -> str:
        """The fingerprint of the opened source."""
        return self.opened.fingerprint()

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Path, Choice]]:
        return _reopened, (self.path, self.choice)


def _reopened(path: Path, choice: Choice) -> Source:
    return open_data(path, choice).source


def _npz(path: Path, choice: Choice) -> Data:
    keys, what = keys_of(path), f"`{path}`"
    target = target_names(choice.target, keys, what)
    groups = choice.groups(keys, what) or (_only_input(keys, target.names, what),)
    for group in groups:
        if len(group.names) > 1:
            raise ValueError(
                f"`--inputs {','.join(group.names)}` names several arrays; give each to an "
                "argument of the model: `--inputs ARGUMENT=ARRAY`, once for each."
            )
    parts = [
        Part(g.argument, f"`{g.names[0]}` in {what}", open_array(path, g.names[0], choice.limits))
        for g in groups
    ]
    read = target.reader(lambda names: open_array(path, names[0], choice.limits))
    return Data(ArraySource(parts, choice.preparation), read)


def _only_input(keys: tuple[str, ...], target: tuple[str, ...], what: str) -> Group:
    """The array `x`, or the only one that is not the target."""
    left = [_INPUT] if _INPUT in keys else [key for key in keys if key not in target]
    if len(left) != 1:
        raise ValueError(
            f"{what} holds the arrays {', '.join(keys) or '(none)'}; say with `--inputs` which is "
            "the model's input."
        )
    return Group("", (left[0],))


def _npy(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A `.npy` file has one array without a name; leave out `--inputs`.")
    target = target_names(choice.target, (), f"`{path}`")
    source = ArraySource([Part("", f"`{path}`", open_npy(path))], choice.preparation)
    return Data(source, target.reader(lambda names: open_npy(path)))


def _table(path: Path, choice: Choice) -> Data:
    columns, what = columns_of(path), f"`{path}`"
    target = target_names(choice.target, columns, what)
    rest = tuple(name for name in columns if name not in target.names)
    groups = choice.groups(columns, what) or (Group("", rest),)
    wanted = list(dict.fromkeys(name for group in groups for name in group.names))
    if not wanted:
        raise ValueError(f"{what} has no columns beside the target.")
    array = read_columns(path, wanted, choice.limits)
    parts = [Part(g.argument, what, array, tuple(map(wanted.index, g.names))) for g in groups]
    read = target.reader(lambda names: read_columns(path, names, choice.limits))
    return Data(ArraySource(parts, choice.preparation), read)


def _images(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A folder of images is one input; leave out `--inputs`.")
    if choice.preparation.scale is None:  # the usual meaning of an image of 8 bits
        choice = replace(choice, preparation=replace(choice.preparation, scale=255.0))
    files = image_files(path)
    return Data(ImageSource(path, files, choice), lambda: image_target(choice.target, path, files))


_READERS: dict[str, Callable[[Path, Choice], Data]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".csv": _table,
    ".parquet": _table,
}
