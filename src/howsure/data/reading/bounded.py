"""Reading in bounded memory: what a file may claim to hold, and numbers kept in temporary files.

A temporary file has no name any more; it vanishes with the array that is mapped to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

import numpy as np

from howsure.data.reading.npy import Header

_ARRAY = 4 * 2**30
_IMAGE = 256 * 2**20
_BLOCK = 2**20


@dataclass(frozen=True)
class Limits:
    """The most bytes that one array, or one image, may take once it is unpacked.

    A small file can declare any size. What it declares is compared with this before anything is
    read.

    Attributes:
        max_bytes: The limit; `None` for 4 GiB for an array and 256 MiB for an image.
    """

    max_bytes: int | None = None

    def check_array(self, declared: int, what: str) -> None:
        """An error if an array that has to be unpacked is too large."""
        _check(declared, self.max_bytes or _ARRAY, what)

    def check_image(self, declared: int, what: str) -> None:
        """An error if an image is too large."""
        _check(declared, self.max_bytes or _IMAGE, what)


def _check(declared: int, limit: int, what: str) -> None:
    if declared > limit:
        raise ValueError(
            f"{what} declares {declared:,} bytes once unpacked, more than the limit of {limit:,}; "
            f"if that is right, allow it with `--max-bytes {declared}`."
        )


def spooled_array(stream: IO[bytes], header: Header, what: str) -> np.ndarray:
    """An array from a stream that stands at its data; no byte more is read than it declares."""
    with tempfile.TemporaryFile() as file:
        left = header.size
        while left:
            block = stream.read(min(left, _BLOCK))
            if not block:
                raise ValueError(f"{what} ends {left:,} bytes too early; the file is damaged.")
            file.write(block)
            left -= len(block)
        stream.read(1)  # the end of an archive's entry, where its check sum is compared
        file.flush()
        return header.mapped(file, 0)


def spooled_table(blocks: Iterable[np.ndarray], columns: int) -> np.ndarray:
    """All rows of blocks (n, columns) as one array of float64."""
    rows = 0
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=np.float64).tobytes())
            rows += len(block)
        file.flush()
        return Header((rows, columns), False, np.dtype(np.float64)).mapped(file, 0)
