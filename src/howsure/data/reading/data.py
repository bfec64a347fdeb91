"""Opens a data file or folder: the model's inputs by row, and the target where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from howsure.data.reading.arrays import npz_keys, open_npy, open_npz
from howsure.data.reading.images import ImageSource, image_files
from howsure.data.reading.source import Inputs, Preparation, Source
from howsure.data.reading.tables import columns_of, read_columns, read_text

KINDS = "`.npz`, `.npy`, `.csv`, `.parquet`, or a folder of images"
_INPUT, _TARGET = "x", "y"  # the arrays or columns that mean them unless others are named
_FOLDERS, _FILE = "folders", "file"  # of images: classes by folder, values by name in a table


@dataclass(frozen=True)
class Group:
    """One input of the model.

    Attributes:
        argument: The model's argument that takes it; "" for the only one.
        names: The array, or columns of a table.
    """

    argument: str
    names: tuple[str, ...]

    @staticmethod
    def parsed(text: str) -> Group:
        """The group that `a,b,c` or `argument=a,b,c` names."""
        argument, equals, rest = text.rpartition("=")
        names = tuple(name.strip() for name in rest.split(","))
        if not all(names) or (equals and not argument.strip()):
            raise ValueError(
                f"`--inputs {text}` is not understood; give names separated by commas, or "
                "`argument=names` for a model with several inputs."
            )
        return Group(argument.strip(), names)


@dataclass(frozen=True)
class Choice:
    """What the user says about a data file.

    Attributes:
        inputs: The model's inputs; empty for what the file's kind suggests.
        target: Array, columns or file of the target; `None` for what the file's kind suggests.
        preparation: What is done to the numbers before the model sees them.
        image_size: Height and width to which images are brought; `None` to leave them.
        gray: Read images as gray instead of RGB.
        max_bytes: The most that a compressed array, a table or an image may take once unpacked;
            `None` for 4 GiB, and 256 MiB for an image.
    """

    inputs: tuple[Group, ...] = ()
    target: str | None = None
    preparation: Preparation = field(default_factory=Preparation)
    image_size: tuple[int, int] | None = None
    gray: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Several inputs must have a name each."""
        arguments = [group.argument for group in self.inputs]
        if len(arguments) > 1 and (not all(arguments) or len(set(arguments)) < len(arguments)):
            raise ValueError(
                "Several `--inputs` need the names of the model's arguments, each its own: "
                "`--inputs image=camera --inputs motion=imu`."
            )


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
        """The target of every row: floats in the file's precision, integers as int64."""
        target = self.read_target()
        if len(target) != len(self.source):
            raise ValueError(f"There are {len(self.source)} rows and {len(target)} targets.")
        finite = np.isfinite(target).reshape(len(target), -1).all(1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"The target of row {row} is NaN or infinite (rows count from 0).")
        integer = target.dtype.kind in "iub"
        kind = np.dtype(np.int64) if integer else target.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(target, dtype=kind, order="C"))


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Rows of arrays, or of some columns of them; another process opens the file again.

    Attributes:
        path: The file.
        choice: How it is read.
        inputs: By argument of the model ("" for the only one) a name for messages, the array, and
            the columns of it that make the input, `None` for all.
    """

    path: Path
    choice: Choice
    inputs: Mapping[str, tuple[str, np.ndarray, list[int] | None]]

    def __post_init__(self) -> None:
        """All inputs must have the same number of rows."""
        for name, array, _ in self.inputs.values():
            if array.ndim == 0:
                raise ValueError(f"{name} is a single number; give an array with rows.")
        lengths = {name: len(array) for name, array, _ in self.inputs.values()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ValueError(f"The inputs differ in their number of rows ({counts}).")

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values()))[1])

    def rows(self, start: int, stop: int) -> Inputs:
        """A tensor; a dict by argument where the arguments have names."""
        tensors = {}
        for argument, (name, array, columns) in self.inputs.items():
            rows = array[start:stop] if columns is None else array[start:stop, columns]
            tensors[argument] = self.choice.preparation(rows, name, start)
        return tensors.get("", tensors)

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Path, Choice]]:
        return _open_source, (self.path.resolve(), self.choice)


def _open_source(path: Path, choice: Choice) -> Source:
    return open_data(path, choice).source


def open_data(path: str | Path, choice: Choice) -> Data:
    """The data of a file or folder; sizes that it declares are checked before anything is read."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder `{path}`.")
    if path.is_dir():
        data = _open_images(path, choice)
    elif path.suffix in _READERS:
        data = _READERS[path.suffix](path, choice)
    else:
        raise ValueError(f"howsure cannot read `{path}`; give {KINDS}.")
    if len(data.source) == 0:
        raise ValueError(f"`{path}` has no rows.")
    return data


def _open_npz(path: Path, choice: Choice) -> Data:
    keys = npz_keys(path)
    target = _target_names(choice, keys)
    groups = choice.inputs
    if not groups:  # the array `x`, or the only one that is not the target
        rest = [_INPUT] if _INPUT in keys else [key for key in keys if key not in target]
        if len(rest) != 1:
            raise ValueError(
                f"`{path}` holds the arrays {', '.join(keys) or '(none)'}; say with `--inputs` "
                "which is the model's input."
            )
        groups = (Group("", (rest[0],)),)
    for group in groups:
        _check_names(group.names, keys, path)
        if len(group.names) > 1:
            raise ValueError(
                f"`--inputs {','.join(group.names)}` names several arrays; give each to an "
                "argument of the model: `--inputs ARGUMENT=ARRAY`, once for each."
            )
    inputs = {
        group.argument: (f"`{key}` in `{path}`", open_npz(path, key, choice.max_bytes), None)
        for group in groups
        for key in group.names
    }
    return Data(
        ArraySource(path, choice, inputs),
        _target_reader(
            path, choice, keys, lambda names: open_npz(path, names[0], choice.max_bytes)
        ),
    )


def _open_npy(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A `.npy` file has one array without a name; leave out `--inputs`.")
    source = ArraySource(path, choice, {"": (f"`{path}`", open_npy(path), None)})
    return Data(source, _target_reader(path, choice, (), lambda names: open_npy(path)))


def _open_table(path: Path, choice: Choice) -> Data:
    columns = tuple(columns_of(path))
    target = _target_names(choice, columns)
    rest = tuple(name for name in columns if name not in target)
    groups = choice.inputs or (Group("", rest),)
    for group in groups:
        _check_names(group.names, columns, path)
    wanted = list(dict.fromkeys(name for group in groups for name in group.names))
    if not wanted:
        raise ValueError(f"`{path}` has no columns beside the target.")
    table = read_columns(path, wanted, choice.max_bytes)
    inputs = {
        group.argument: (f"`{path}`", table, [wanted.index(name) for name in group.names])
        for group in groups
    }
    source = ArraySource(path, choice, inputs)
    read = partial(read_columns, path, max_bytes=choice.max_bytes)
    return Data(source, _target_reader(path, choice, columns, read))


def _open_images(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A folder of images is one input; leave out `--inputs`.")
    preparation = choice.preparation
    if preparation.scale is None:  # the usual meaning of an image of 8 bits
        preparation = replace(preparation, scale=255.0)
    files = image_files(path)
    source = ImageSource(path, files, preparation, choice.image_size, choice.gray, choice.max_bytes)
    return Data(source, lambda: _image_target(choice.target, path, files))


_READERS: dict[str, Callable[[Path, Choice], Data]] = {
    ".npz": _open_npz,
    ".npy": _open_npy,
    ".csv": _open_table,
    ".parquet": _open_table,
}


def _check_names(names: Iterable[str], available: Sequence[str], path: Path) -> None:
    """An error that names what is missing, and what there is."""
    missing = [name for name in names if name not in available]
    if missing:
        listed = ", ".join(f"`{name}`" for name in available[:20]) or "nothing"
        more = f" and {len(available) - 20} more" if len(available) > 20 else ""
        raise ValueError(f"`{path}` has no `{missing[0]}`; it has {listed}{more}.")


def _target_names(choice: Choice, available: Sequence[str]) -> tuple[str, ...]:
    """The arrays or columns of the data's own file that are the target."""
    if choice.target is None:
        return (_TARGET,) if _TARGET in available else ()
    if choice.target.endswith(".npy"):
        return ()
    return tuple(name.strip() for name in choice.target.split(","))


def _target_reader(
    path: Path,
    choice: Choice,
    available: Sequence[str],
    read: Callable[[tuple[str, ...]], np.ndarray],
) -> Callable[[], np.ndarray]:
    """Reads the target: from a file of its own, or by its names from the data's file."""
    names = _target_names(choice, available)
    _check_names(names, available, path)
    if choice.target is not None and choice.target.endswith(".npy"):
        own = _existing(choice.target)
        return lambda: open_npy(own)

    def read_target() -> np.ndarray:
        if not names:
            raise ValueError(
                f"`{path}` has no `{_TARGET}`; say with `--target` what the true values are."
            )
        return read(names)

    return read_target


def _image_target(target: str | None, folder: Path, files: Sequence[Path]) -> np.ndarray:
    """The target of every image: classes by folder, values by file name, or an array."""
    if target == _FOLDERS:
        loose = [path for path in files if path.parent == folder]
        if loose:
            raise ValueError(f"`{loose[0]}` is in no folder of a class.")
        parents = [path.relative_to(folder).parts[0] for path in files]
        return np.unique(parents, return_inverse=True)[1]
    if target is not None and target.endswith(".npy"):
        return open_npy(_existing(target))
    if target is not None and target.endswith(".csv"):
        return _values_by_file(_existing(target), folder, files)
    raise ValueError(
        f"A folder of images has its targets elsewhere: `--target {_FOLDERS}` for classes named by "
        f"the folders in it, `--target VALUES.csv` with a column `{_FILE}`, or `--target FILE.npy`."
    )


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` for the target.")
    return path


def _values_by_file(table: Path, folder: Path, files: Sequence[Path]) -> np.ndarray:
    columns = tuple(columns_of(table))
    _check_names([_FILE], columns, table)
    names = [name for name in columns if name != _FILE]
    if not names:
        raise ValueError(f"`{table}` has no column of values beside `{_FILE}`.")
    positions = {name: i for i, name in enumerate(read_text(table, _FILE))}
    wanted = [path.relative_to(folder).as_posix() for path in files]
    missing = [name for name in wanted if name not in positions]
    if missing:
        raise ValueError(f"`{table}` has no row for the image `{missing[0]}`.")
    values = read_columns(table, names)[[positions[name] for name in wanted]]
    return values[:, 0] if len(names) == 1 else values
