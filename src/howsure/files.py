"""Files that are written whole or not at all, and that show whether they were damaged since."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[Any]], object], *, text: bool = False) -> None:
    """Writes to a temporary file beside `path` and renames it; a failure leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w" if text else "wb", encoding="utf-8" if text else None) as file:
            write(file)
            file.flush()
            # Else a power failure could leave a name without data.
            os.fsync(file.fileno())
        # A temporary file is private; the finished one has the usual permissions.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
