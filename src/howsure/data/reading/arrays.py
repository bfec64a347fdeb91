"""Arrays of `.npy` and `.npz` files, mapped into memory by numpy; nothing is ever unpickled."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

_SUFFIX = ".npy"
# The most bytes that a compressed array, or a table, may take unless `--max-bytes` says otherwise.
MAX_ARRAY_BYTES = 4 * 2**30


def check_size(declared: int, limit: int, what: str) -> None:
    """An error if a file declares more than the limit, before anything is unpacked.

    A small file can declare any size.
    """
    if declared > limit:
        raise ValueError(
            f"{what} declares {declared:,} bytes once unpacked, more than the limit of {limit:,}; "
            f"if that is right, allow it with `--max-bytes {declared}`."
        )


def open_npy(path: Path, what: str = "") -> np.ndarray:
    """The array of a `.npy` file, mapped; its size must be what the header declares."""
    what = what or f"`{path}`"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, about headers of old or damaged files
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, PermissionError):
        raise
    # A header is a Python literal; a damaged one fails in a dozen ways, among them TokenError,
    # RecursionError and MemoryError.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(
            f"{what} cannot be read as an array of numbers (pickled Python objects are never "
            f"loaded): {reason}"
        ) from None
    if not isinstance(array, np.memmap):
        raise ValueError(f"{what} is not a `.npy` file.")
    if array.offset + array.nbytes != path.stat().st_size:
        raise ValueError(f"{what} has more bytes than its header declares; it is damaged.")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{what} holds `{array.dtype}`; give real numbers, integers or booleans.")
    return array


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays in an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"`{path}` is not a readable `.npz` archive: {error}.") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"`{path}` has the entry `{repeated[0]}` twice; it is damaged.")
    return tuple(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def open_npz(path: Path, key: str, max_bytes: int | None = None) -> np.ndarray:
    """One array of an archive, unpacked into a temporary file and mapped from there.

    Unpacking compares the check sum. The file has no name any more when this returns; it vanishes
    with the array.
    """
    what = f"The array `{key}` of `{path}`"
    try:
        with zipfile.ZipFile(path) as archive, tempfile.NamedTemporaryFile(suffix=_SUFFIX) as copy:
            entry = archive.getinfo(key + _SUFFIX)
            if entry.compress_type != zipfile.ZIP_STORED:
                check_size(entry.file_size, max_bytes or MAX_ARRAY_BYTES, what)
            with archive.open(entry) as packed:
                shutil.copyfileobj(packed, copy)
            copy.flush()
            return open_npy(Path(copy.name), what)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise ValueError(f"`{path}` is not a readable `.npz` archive: {error}.") from None
