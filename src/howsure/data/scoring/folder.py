"""The work folder beside the result: a manifest, and one file for every finished shard.

Files get their names when they are complete. The manifest says what the run is about; only the same
run may continue it. Every shard ends with a seal, a digest of the manifest and of its own bytes:
one that was damaged, or belongs to another run, is computed again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from howsure.data.scoring.plan import Span
from howsure.data.scoring.shard import Shard
from howsure.files import sealed, unsealed, write_atomically

Manifest = dict[str, object]

_MANIFEST, _MERGED, _SHARDS = "manifest.json", "merged", "rows-*.npz"
# What a killed run leaves behind; the second is the result before it gets its name.
_LEFTOVERS = (".manifest.json.*", _MERGED, ".merged.*", ".rows-*")


class WorkFolder:
    """Where the shards of one run wait for the last of them."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(f"{out.name}.parts")
        self.manifest = b""

    @contextlib.contextmanager
    def opened(self, manifest: Manifest, *, fresh: bool) -> Iterator[None]:
        """The folder, ready for this run alone; refuses to continue another one."""
        with locked(self.path):
            self._remove(*_LEFTOVERS)
            if fresh:
                self._remove(_SHARDS, _MANIFEST)
            self._check(manifest)
            self.manifest = _as_text(manifest)
            self._write(_MANIFEST, lambda file: file.write(self.manifest))
            try:
                yield
            finally:
                if not self._found(_SHARDS):  # finished, or failed before anything was done
                    self._close()

    def _check(self, manifest: Manifest) -> None:
        """An error if there are shards of another run."""
        try:
            found = json.loads((self.path / _MANIFEST).read_text(encoding="utf-8"))
        except (ValueError, FileNotFoundError):
            found = None
        # Without a manifest, the seals of the shards tell which are this run's.
        if not self._found(_SHARDS) or not isinstance(found, dict):
            return
        changed = [name for name in manifest if manifest[name] != found.get(name)]
        if changed:
            listed = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
            raise ValueError(
                f"`{self.path}` holds an unfinished run with other {listed}. Run it as before to "
                "finish it, or drop what it has done with `fresh=True`."
            )

    def missing(self, shards: list[Span], is_current: Callable[[Shard], bool]) -> list[Span]:
        """The shards that are still to be computed: not there, damaged, or of other inputs."""
        return [
            span
            for span in shards
            if unsealed(self._shard(span), self.manifest) is None or not is_current(self.read(span))
        ]

    def add(self, shard: Shard) -> None:
        """Writes a shard; from here on it is done."""
        # Readers of zip files leave aside what follows the archive.
        content = sealed(shard.to_bytes(), self.manifest)
        self._write(self._shard(shard.span).name, lambda file: file.write(content))

    def read(self, span: Span) -> Shard:
        """The finished shard of these rows."""
        return Shard.read(self._shard(span), span)

    def column(self, span: Span, name: str) -> np.ndarray:
        """One column of a finished shard."""
        with np.load(self._shard(span), allow_pickle=False) as found:
            return found[name]

    def finish(self, write: Callable[[IO[bytes]], object]) -> None:
        """Writes the result, gives it its name in one step, and removes the shards."""
        self._write(_MERGED, write)
        (self.path / _MERGED).replace(self.out)
        self._remove(_SHARDS)

    def _close(self) -> None:
        self._remove(_MANIFEST, LOCK)
        with contextlib.suppress(OSError):  # a file that is not ours keeps its folder
            self.path.rmdir()

    def _write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        write_atomically(self.path / name, write)

    def _remove(self, *patterns: str) -> None:
        for path in self._found(*patterns):
            path.unlink()

    def _found(self, *patterns: str) -> list[Path]:
        return [path for pattern in patterns for path in sorted(self.path.glob(pattern))]

    def _shard(self, span: Span) -> Path:
        return self.path / f"rows-{span.start:012d}-{span.stop:012d}.npz"


def _as_text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


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
