"""Data files as rows: `.npy`, `.npz`, CSV, Parquet, and folders of images.

Nothing in a file is unpickled or evaluated, and a size that it declares is checked before anything
is unpacked. Memory does not grow with the data: arrays are mapped, and what must be unpacked or
parsed goes into a temporary file that is mapped from there.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from howsure.errors import import_extra

# What a model takes: one tensor, several by position, or several by name. Rows come first.
Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]

# The most bytes that a compressed array or a table, and an image, may take once unpacked.
MAX_ARRAY_BYTES, MAX_IMAGE_BYTES = 4 * 2**30, 256 * 2**20
_NPY = ".npy"
_INPUT, _TARGET = "x", "y"  # the arrays or columns that mean them unless others are named
_FOLDERS, _FILE = "folders", "file"  # of images: classes by folder, values by name in a table
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# Pillow's names for pixels of 8 bits or fewer; others would be clipped silently.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


class Source(Protocol):
    """Rows of input data, read on demand; any object with these methods will do."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def rows(self, start: int, stop: int) -> Inputs:
        """The inputs of rows start to stop - 1; the same numbers give the same rows, always."""
        ...


# --- What the user says -----------------------------------------------------------------------


@dataclass(frozen=True)
class Preparation:
    """(x / scale - mean) / std, in the model's floating-point type.

    Integers stay integers (a model may look them up) unless there is something to compute.

    Attributes:
        scale: By what everything is divided first: 255 for 8-bit images.
        mean: Subtracted then: a number, or one per channel (dimension 1).
        std: By what is divided last, likewise.
        dtype: The model's type; floating-point data is converted to it.
    """

    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Refuses to divide by zero."""
        for name, values in (("--scale", (self.scale,)), ("--normalize-std", self.std)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                raise ValueError(f"`{name}` must be positive, not {values}.")

    def __call__(self, array: np.ndarray, name: str, first: int) -> Tensor:
        """A tensor from rows of an array; `first` is the number of the first row."""
        if (row := _first_bad_row(array)) is not None:
            raise ValueError(
                f"Row {first + row} of {name} contains NaN or infinity (rows count from 0); leave "
                "such rows out, or fix them."
            )
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)  # torch can do little with large unsigned integers
        x = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        if self.scale is not None or self.mean or self.std or x.dtype.is_floating_point:
            x = x.to(self.dtype)
        if self.scale is not None:
            x = x / self.scale
        if self.mean:
            x = x - _along_channels(self.mean, x, "--normalize-mean")
        return x / _along_channels(self.std, x, "--normalize-std") if self.std else x


def _first_bad_row(array: np.ndarray) -> int | None:
    """The first row that is not finite."""
    finite = np.isfinite(array).reshape(len(array), -1).all(1)
    return None if finite.all() else int(np.argmin(finite))


def _along_channels(values: tuple[float, ...], x: Tensor, option: str) -> Tensor:
    numbers = torch.tensor(values, dtype=x.dtype)
    if len(values) == 1:
        return numbers
    if x.dim() < 2 or x.shape[1] != len(values):
        raise ValueError(
            f"`{option}` has {len(values)} numbers for inputs of shape {tuple(x.shape[1:])}; give "
            "one, or one for each channel."
        )
    return numbers.reshape(-1, *(1,) * (x.dim() - 2))


@dataclass(frozen=True)
class Choice:
    """What the user says about a data file.

    Attributes:
        inputs: By argument of the model ("" for the only one) its array, or columns of a table;
            empty for what the file's kind suggests.
        target: Array, columns or file of the target; `None` for what the file's kind suggests.
        preparation: What is done to the numbers before the model sees them.
        image_size: Height and width to which images are brought; `None` to leave them.
        gray: Read images as gray instead of RGB.
        max_bytes: The most that a compressed array, a table or an image may take once unpacked;
            `None` for 4 GiB, and 256 MiB for an image.
    """

    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    target: str | None = None
    preparation: Preparation = field(default_factory=Preparation)
    image_size: tuple[int, int] | None = None
    gray: bool = False
    max_bytes: int | None = None

    def target_names(self, available: Sequence[str]) -> tuple[str, ...]:
        """The arrays or columns of the data's own file that are the target."""
        if self.target is None:
            return (_TARGET,) if _TARGET in available else ()
        if self.target.endswith(_NPY):
            return ()
        return tuple(name.strip() for name in self.target.split(","))


# --- What it becomes --------------------------------------------------------------------------


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
        if (row := _first_bad_row(target)) is not None:
            raise ValueError(f"The target of row {row} is NaN or infinite (rows count from 0).")
        integer = target.dtype.kind in "iub"
        dtype = np.dtype(np.int64) if integer else target.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(target, dtype=dtype, order="C"))


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Rows of arrays; another process opens the file again.

    Attributes:
        path: The file.
        choice: How it is read.
        arrays: By argument of the model ("" for the only one) a name for messages and the array.
    """

    path: Path
    choice: Choice
    arrays: Mapping[str, tuple[str, np.ndarray]]

    def __post_init__(self) -> None:
        """All inputs must have the same number of rows."""
        for name, array in self.arrays.values():
            if array.ndim == 0:
                raise ValueError(f"{name} is a single number; give an array with rows.")
        lengths = {name: len(array) for name, array in self.arrays.values()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ValueError(f"The inputs differ in their number of rows ({counts}).")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()))[1])

    def rows(self, start: int, stop: int) -> Inputs:
        """A tensor; a dict by argument where the arguments have names."""
        tensors = {
            argument: self.choice.preparation(array[start:stop], name, start)
            for argument, (name, array) in self.arrays.items()
        }
        return tensors[""] if set(tensors) == {""} else tensors

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Path, Choice]]:
        return _open_source, (self.path.resolve(), self.choice)


@dataclass(frozen=True, eq=False)
class ImageSource:
    """The images of a folder as rows of shape (3 or 1, height, width), each read by pillow."""

    folder: Path
    files: tuple[Path, ...]
    choice: Choice

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, start: int, stop: int) -> Inputs:
        """A batch of images; all must have the same size."""
        files = self.files[start:stop]
        images = [self._pixels(path) for path in files]
        for path, image in zip(files, images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"`{path}` has {image.shape[0]} x {image.shape[1]} pixels and `{files[0]}` "
                    f"{images[0].shape[0]} x {images[0].shape[1]}; bring all to one size with "
                    "`--image-size HEIGHT,WIDTH`."
                )
        pixels = np.stack(images).transpose(0, 3, 1, 2)
        return self.choice.preparation(pixels, f"`{self.folder}`", start)

    def _pixels(self, path: Path) -> np.ndarray:  # (height, width, channels)
        pillow = import_extra("PIL.Image", "Folders of images need `pillow`")
        size, channels = self.choice.image_size, 1 if self.choice.gray else 3
        with _readable(path, "is not a readable image"):
            image = pillow.open(path)  # the header alone
        with image:
            limit = self.choice.max_bytes or MAX_IMAGE_BYTES
            check_size(image.width * image.height * channels, limit, f"`{path}`")
            if image.mode not in _MODES:
                raise ValueError(
                    f"`{path}` has pixels of the kind {image.mode!r}, which 8 bits cannot hold; "
                    "give such images as an array in a `.npz` file."
                )
            with _readable(path, "is not a readable image"):
                pixels = image.convert("L" if self.choice.gray else "RGB")
                if size is not None:
                    pixels = pixels.resize(size[::-1], pillow.Resampling.BILINEAR)
                return np.asarray(pixels).reshape(pixels.height, pixels.width, channels)


def open_data(path: str | Path, choice: Choice) -> Data:
    """The data of a file or folder; sizes that it declares are checked before anything is read."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder `{path}`.")
    opened = _OPEN.get("folder" if path.is_dir() else path.suffix)
    if opened is None:
        raise ValueError(
            f"howsure cannot read `{path}`; give `.npz`, `.npy`, `.csv`, `.parquet`, or a folder "
            "of images."
        )
    data = opened(path, choice)
    if len(data.source) == 0:
        raise ValueError(f"`{path}` has no rows.")
    return data


def _open_source(path: Path, choice: Choice) -> Source:
    return open_data(path, choice).source


def _open_npy(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A `.npy` file has one array without a name; leave out `--inputs`.")
    return _data(path, choice, (), (), lambda names: open_npy(path))


def _open_npz(path: Path, choice: Choice) -> Data:
    keys = npz_keys(path)
    target = choice.target_names(keys)
    default = [_INPUT] if _INPUT in keys else [key for key in keys if key not in target]
    if not choice.inputs and len(default) != 1:
        raise ValueError(
            f"`{path}` holds the arrays {', '.join(keys) or '(none)'}; say with `--inputs` which "
            "is the model's input."
        )
    for names in choice.inputs.values():
        if len(names) > 1:
            raise ValueError(
                f"`--inputs {','.join(names)}` names several arrays; give each to an "
                "argument of the model: `--inputs ARGUMENT=ARRAY`, once for each."
            )
    return _data(
        path, choice, keys, default, lambda names: open_npz(path, names[0], choice.max_bytes)
    )


def _open_table(path: Path, choice: Choice) -> Data:
    columns = tuple(columns_of(path))
    target = choice.target_names(columns)
    default = [name for name in columns if name not in target]
    if not choice.inputs and not default:
        raise ValueError(f"`{path}` has no columns beside the target.")
    read = partial(read_columns, path, max_bytes=choice.max_bytes)
    return _data(path, choice, columns, default, read)


def _data(
    path: Path,
    choice: Choice,
    available: Sequence[str],
    default: Sequence[str],
    read: Callable[[Sequence[str]], np.ndarray],
) -> Data:
    """Inputs and target from the named arrays or columns of a file."""
    arrays = {}
    for argument, names in (choice.inputs or {"": default}).items():
        _check_names(names, available, path)
        what = f"`{names[0]}` in `{path}`" if path.suffix == ".npz" else f"`{path}`"
        arrays[argument] = what, read(names)
    source = ArraySource(path, choice, arrays)
    if choice.target is not None and choice.target.endswith(_NPY):
        return Data(source, partial(open_npy, _existing(choice.target)))
    target = choice.target_names(available)
    _check_names(target, available, path)

    def read_target() -> np.ndarray:
        if not target:
            raise ValueError(
                f"`{path}` has no `{_TARGET}`; say with `--target` what the true values are."
            )
        return read(target)

    return Data(source, read_target)


def _check_names(names: Iterable[str], available: Sequence[str], path: Path) -> None:
    """An error that names what is missing, and what there is."""
    missing = [name for name in names if name not in available]
    if missing:
        listed = ", ".join(f"`{name}`" for name in available[:20]) or "nothing"
        more = f" and {len(available) - 20} more" if len(available) > 20 else ""
        raise ValueError(f"`{path}` has no `{missing[0]}`; it has {listed}{more}.")


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` for the target.")
    return path


def _open_images(path: Path, choice: Choice) -> Data:
    if choice.inputs:
        raise ValueError("A folder of images is one input; leave out `--inputs`.")
    files = [file for file in path.rglob("*") if file.suffix.lower() in _IMAGES]
    if not files:
        raise ValueError(f"The folder `{path}` has no images ({', '.join(_IMAGES)}).")
    files.sort(key=lambda file: file.relative_to(path).as_posix())
    if choice.preparation.scale is None:  # the usual meaning of an image of 8 bits
        choice = replace(choice, preparation=replace(choice.preparation, scale=255.0))
    source = ImageSource(path, tuple(files), choice)
    return Data(source, lambda: _image_target(choice.target, path, files))


def _image_target(target: str | None, folder: Path, files: Sequence[Path]) -> np.ndarray:
    """The target of every image: classes by folder, values by file name, or an array."""
    if target == _FOLDERS:
        loose = [path for path in files if path.parent == folder]
        if loose:
            raise ValueError(f"`{loose[0]}` is in no folder of a class.")
        return np.unique([path.relative_to(folder).parts[0] for path in files], False, True)[1]
    if target is not None and target.endswith(_NPY):
        return open_npy(_existing(target))
    if target is None or not target.endswith(".csv"):
        raise ValueError(
            f"A folder of images has its targets elsewhere: `--target {_FOLDERS}` for classes "
            "named by the folders in it, `--target VALUES.csv` with a column "
            f"`{_FILE}`, or `--target FILE.npy`."
        )
    table = _existing(target)
    columns = tuple(columns_of(table))
    _check_names([_FILE], columns, table)
    names = [name for name in columns if name != _FILE]
    if not names:
        raise ValueError(f"`{table}` has no column of values beside `{_FILE}`.")
    row_of = {name: row for row, name in enumerate(_read_text(table, _FILE))}
    images = [path.relative_to(folder).as_posix() for path in files]
    missing = [name for name in images if name not in row_of]
    if missing:
        raise ValueError(f"`{table}` has no row for the image `{missing[0]}`.")
    values = read_columns(table, names)[[row_of[name] for name in images]]
    return values[:, 0] if len(names) == 1 else values


_OPEN: dict[str, Callable[[Path, Choice], Data]] = {
    _NPY: _open_npy,
    ".npz": _open_npz,
    ".csv": _open_table,
    ".parquet": _open_table,
    "folder": _open_images,
}


# --- Arrays -----------------------------------------------------------------------------------


def check_size(declared: int, limit: int, what: str) -> None:
    """An error if a file declares more than the limit: a small file can declare any size."""
    if declared > limit:
        raise ValueError(
            f"{what} declares {declared:,} bytes once unpacked, more than the limit of {limit:,}; "
            f"if that is right, allow it with `--max-bytes {declared}`."
        )


def open_npy(path: Path, what: str = "") -> np.ndarray:
    """The array of a `.npy` file, mapped; its size must be what the header declares."""
    what = what or f"`{path}`"
    # A header is a Python literal; a damaged one fails in a dozen ways, among them TokenError,
    # RecursionError and MemoryError.
    problem = "cannot be read as an array of numbers (pickled Python objects are never loaded)"
    with _readable(what, problem):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.memmap):
        raise ValueError(f"{what} is not a `.npy` file.")
    if array.offset + array.nbytes != path.stat().st_size:
        raise ValueError(f"{what} has more bytes than its header declares; it is damaged.")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{what} holds `{array.dtype}`; give real numbers, integers or booleans.")
    return array


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays in an archive."""
    with _readable(path, "is not a readable `.npz` archive"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"`{path}` has the entry `{repeated[0]}` twice; it is damaged.")
    return tuple(name.removesuffix(_NPY) for name in names if name.endswith(_NPY))


def open_npz(path: Path, key: str, max_bytes: int | None = None) -> np.ndarray:
    """One array of an archive, unpacked into a temporary file and mapped from there.

    Unpacking compares the check sum. The file has no name any more when this returns; it vanishes
    with the array.
    """
    what = f"The array `{key}` of `{path}`"
    try:
        with zipfile.ZipFile(path) as archive, tempfile.NamedTemporaryFile(suffix=_NPY) as copy:
            entry = archive.getinfo(key + _NPY)
            if entry.compress_type != zipfile.ZIP_STORED:
                check_size(entry.file_size, max_bytes or MAX_ARRAY_BYTES, what)
            with archive.open(entry) as packed:
                shutil.copyfileobj(packed, copy)
            copy.flush()
            return open_npy(Path(copy.name), what)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise ValueError(f"`{path}` is not a readable `.npz` archive: {error}.") from None


# --- Tables, through pyarrow ------------------------------------------------------------------


def columns_of(path: Path) -> dict[str, str]:
    """The columns of a table: their names without spaces around them, and as the file has them."""
    try:
        header = _parquet(path).schema_arrow if path.suffix == ".parquet" else _csv(path).schema
        names = {name.strip(): name for name in header.names}
    except UnicodeDecodeError as error:
        raise ValueError(f"The names of columns in `{path}` are not UTF-8: {error}.") from None
    if len(names) < len(header.names):
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
    in_file = columns_of(path)
    columns, rows = [in_file[name] for name in names], 0
    batches = _batches(path, columns, max_bytes)
    with tempfile.TemporaryFile() as file, _readable(path, "cannot be read"):
        for batch in batches:
            block = np.stack([_numbers(batch.column(name), name) for name in columns], 1)
            file.write(np.ascontiguousarray(block, dtype=np.float64).tobytes())
            rows += len(block)
        file.flush()
        shape = rows, len(names)
        return np.memmap(file, np.float64, "r", 0, shape) if rows else np.empty(shape)


def _batches(path: Path, columns: Sequence[str], max_bytes: int | None) -> Iterable[Any]:
    """The columns in pieces."""
    if path.suffix != ".parquet":
        return _csv(path, dict.fromkeys(columns, import_module("pyarrow").float64()))
    file = _parquet(path)
    size = file.metadata.num_rows * len(columns) * np.dtype(np.float64).itemsize
    check_size(size, max_bytes or MAX_ARRAY_BYTES, f"`{path}`")
    return file.iter_batches(columns=columns)


def _numbers(column: Any, name: str) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"the column `{name}` holds `{column.type}`, not numbers")
    return values


def _read_text(path: Path, name: str) -> list[str]:
    """One column of a CSV file as text."""
    column = columns_of(path)[name]
    with _readable(path, "cannot be read as CSV"):
        batches = _csv(path, {column: import_module("pyarrow").string()})
        return [text for batch in batches for text in batch.column(column).to_pylist()]


def _csv(path: Path, types: dict[str, Any] | None = None) -> Any:
    """A reader of a CSV file; of the named columns alone, in the given types."""
    csv = import_extra("pyarrow.csv", "Tables need `pyarrow`")
    with _readable(path, "cannot be read as CSV"):
        return csv.open_csv(
            path,
            # One thread names the row of an error.
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types or ()), null_values=[]
            ),
        )


def _parquet(path: Path) -> Any:
    parquet = import_extra("pyarrow.parquet", "Tables need `pyarrow`")
    with _readable(path, "is not a Parquet file"):
        return parquet.ParquetFile(path)


@contextmanager
def _readable(path: Path | str, problem: str) -> Iterator[None]:
    """Whatever a reader raises for a damaged file, as one sentence; its warnings are left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        what = f"`{path}`" if isinstance(path, Path) else path
        reason = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise ValueError(f"{what} {problem}: {reason}.") from None
