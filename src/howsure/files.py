"""Files that are written whole or not at all, and that show whether they were damaged since."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# Windows has no such links, and opens text by default.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS
# Archives that are stored are as large as their content, but for names.
_MOST_UNPACKED = 2


def write_atomically(
    path: Path,
    write: Callable[[IO[Any]], object],
    *,
    text: bool = False,
    folder: Path | None = None,
) -> None:
    """Writes to a temporary file and renames it; a failure leaves nothing behind.

    The file keeps the permissions that it has; a new one has what the umask leaves.

    Args:
        path: The file.
        write: Writes the content into an open file.
        text: Whether that is text, in UTF-8.
        folder: Where the temporary file is, on the same disk; by default beside `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = (folder or path.parent) / f".{path.name}.{secrets.token_hex(8)}"
    mode = _mode(path)
    # Nobody may open it before it has its permissions.
    handle = os.open(temporary, _NEW_FILE, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "w" if text else "wb", encoding="utf-8" if text else None) as file:
            write(file)
            file.flush()
            # Else a power failure could leave a name without data.
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def open_without_following(path: Path) -> IO[bytes]:
    """A file for reading and writing, made if it is missing; its content stays as it is.

    An error if it is a link: what that points to is not ours.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"`{path}` is a link, which howsure never makes; remove it.") from None
    return os.fdopen(handle, "r+b")


def check_archive(path: Path) -> None:
    """An error for a damaged file of torch, or one that would unpack to far more than its size.

    `torch.save` compresses nothing, so a small file is a small state. It writes checksums, which
    `torch.load` does not read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            packed = path.stat().st_size
            unpacked = sum(entry.file_size for entry in archive.infolist())
            is_too_large = unpacked > _MOST_UNPACKED * packed + 2**20
            is_damaged = not is_too_large and archive.testzip() is not None
    except Exception as error:  # An archive can be broken in many ways.
        if _begins_as_archive(path):  # `torch.load` might read it, as large as it may be.
            raise ValueError(
                f"`{path}` is damaged: its table of contents cannot be read."
            ) from error
        return  # Not of this format; `torch.load` says what is wrong.
    if is_too_large:
        raise ValueError(
            f"`{path}` has {packed / 1e6:.1f} MB and would unpack to {unpacked / 1e6:.0f} MB, "
            "which no file of `torch.save` does; it is not loaded."
        )
    if is_damaged:
        raise ValueError(f"`{path}` is damaged: what it holds does not match its checksums.")


def _begins_as_archive(path: Path) -> bool:
    """Whether `torch.load` takes a file for an archive."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def sealed(content: bytes, context: bytes = b"") -> bytes:
    """The content, followed by a digest of itself and of the context that it belongs to."""
    return content + hashlib.sha256(hashlib.sha256(context).digest() + content).digest()


def unsealed(path: Path, context: bytes = b"") -> bytes | None:
    """The content of a sealed file; `None` if it is missing, damaged, or of another context."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    content = whole[: -hashlib.sha256().digest_size]
    return content if whole == sealed(content, context) else None


def check_trusted(path: Path, *, trust: bool) -> None:
    """An error if a `.pt2` file is missing, or is to be loaded without the user's word for it."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}`.")
    if not trust:
        raise ValueError(
            f"`{path}` is not loaded: torch unpickles and evaluates what a `.pt2` file holds, so "
            "it can run code; if you know where it comes from, `--trust` (in Python `trust=True`) "
            "loads it."
        )
