"""One run at a time in a work folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for this process alone; an error if another has it.

    The system drops the lock when a process ends, also by a kill.
    """
    file = _opened(folder)
    try:
        yield
    finally:
        file.close()


def _opened(folder: Path) -> IO[str]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue  # another run has just finished and removed the folder
        try:
            _lock(file)
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"Another process is at work in `{folder}`; wait for it, or write to another file."
            ) from None
        if _is_in(folder, file):
            return file
        file.close()


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: users must see to it themselves
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_in(folder: Path, file: IO[str]) -> bool:
    """Whether the file that is locked is still the one in the folder."""
    try:
        return os.path.samestat((folder / LOCK).stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
