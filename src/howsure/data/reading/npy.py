"""Arrays of `.npy` files: the header is checked against the file's size, the data is mapped.

Nothing is ever unpickled: arrays of Python objects are refused.
"""

from __future__ import annotations

import math
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
# What numpy raises for a header that is not the literal it expects.
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True)
class Header:
    """What the beginning of a `.npy` file declares.

    Attributes:
        shape: The array's shape.
        fortran: Whether the first dimension runs fastest.
        dtype: The numbers' type.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the data; Python's integers do not overflow."""
        return math.prod(self.shape) * self.dtype.itemsize

    def mapped(self, file: IO[bytes] | Path, offset: int) -> np.ndarray:
        """The array that lies in a file behind `offset` bytes."""
        order = "F" if self.fortran else "C"
        if self.size == 0:  # nothing can be mapped
            return np.empty(self.shape, self.dtype)
        return np.memmap(file, self.dtype, "r", offset, self.shape, order)


def read_header(stream: IO[bytes], what: str) -> Header:
    """The header at the stream's position, which then stands at the data."""
    try:
        version = npy_format.read_magic(stream)
        found = _HEADERS[version](stream) if version in _HEADERS else None
    except _MALFORMED as error:
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(f"{what} is not an array that numpy wrote: {why}") from None
    if found is None:
        raise ValueError(f"{what} has version {version} of numpy's format; write it again.")
    header = Header(*found)
    if not _is_possible(header.shape):
        raise ValueError(f"{what} declares the shape {header.shape}; it is damaged.")
    if header.dtype.hasobject:
        raise ValueError(
            f"{what} holds pickled Python objects, which are not read because they can run code; "
            "save an array of numbers."
        )
    if header.dtype.kind not in "fiub":
        raise ValueError(f"{what} holds `{header.dtype}`; give real numbers, integers or booleans.")
    return header


def _is_possible(shape: tuple[int, ...]) -> bool:
    """Whether numpy can have an array of a shape: not too many lengths, none wrong or too long."""
    try:
        np.broadcast_to(np.empty((), np.longdouble), shape)  # takes no memory
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def open_npy(path: Path) -> np.ndarray:
    """The array of a `.npy` file, mapped; its size must be what the header declares."""
    what = f"`{path}`"
    with path.open("rb") as file:
        header = read_header(file, what)
        offset = file.tell()
    found = path.stat().st_size - offset
    if found != header.size:
        raise ValueError(
            f"{what} declares {header.size:,} bytes of data and has {found:,}; it is damaged."
        )
    return header.mapped(path, offset)
