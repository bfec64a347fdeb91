"""Arrays of `.npz` archives, each by its key, in bounded memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from howsure.data.reading.bounded import Limits, spooled_array
from howsure.data.reading.npy import read_header

_SUFFIX = ".npy"
_LOCAL_HEADER = 30  # bytes before the name in a zip's entry
_STORED_BLOCKS = 2**16


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The opened archive; damage is told in one sentence, whenever it is met."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise ValueError(f"`{path}` is not a readable `.npz` archive: {error}.") from None


def keys_of(path: Path) -> tuple[str, ...]:
    """The names of the arrays in an archive."""
    with _archive(path) as archive:
        names = [entry.filename for entry in archive.infolist()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"`{path}` has the entry `{repeated[0]}` twice; it is damaged.")
    return tuple(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def open_array(path: Path, key: str, limits: Limits) -> np.ndarray:
    """One array: mapped where it is stored as it is, else unpacked into a temporary file."""
    what = f"The array `{key}` of `{path}`"
    with _archive(path) as archive:
        entry = archive.getinfo(key + _SUFFIX)
        with archive.open(entry) as stream:
            header = read_header(stream, what)
            start = stream.tell()
            if start + header.size != entry.file_size:
                raise ValueError(
                    f"{what} declares {header.size:,} bytes of data, and its entry holds "
                    f"{entry.file_size - start:,}; the file is damaged."
                )
            if entry.compress_type == zipfile.ZIP_STORED:
                _check_sum(archive, entry)
                return header.mapped(path, _offset(path, entry) + start)
            limits.check_array(header.size, what)
            return spooled_array(stream, header, what)


def _check_sum(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Reads an entry to its end, which compares it with its check sum."""
    with archive.open(entry) as stream:
        while stream.read(_STORED_BLOCKS):
            pass


def _offset(path: Path, entry: zipfile.ZipInfo) -> int:
    """Where an entry's data begins: behind its local header, whose lengths are its own."""
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        local = file.read(_LOCAL_HEADER)
    name, extra = (int.from_bytes(local[at : at + 2], "little") for at in (26, 28))
    return entry.header_offset + _LOCAL_HEADER + name + extra
