"""Numbers that come one after the other, kept in a temporary file so that memory stays bounded.

The file has no name any more; it vanishes with the array that is mapped to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import IO

import numpy as np

from howsure.data.reading.npy import Header

_BLOCK = 2**20


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
