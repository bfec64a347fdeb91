"""The work folder beside the result: a manifest, and one file for every finished shard.

Whatever has its name is whole, since files get their names when they are complete. The manifest
says what the run is about; only the same run may continue it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from howsure.files import write_atomically
from howsure.scoring.lock import LOCK, locked
from howsure.scoring.plan import Span
from howsure.scoring.shard import Shard, is_whole

Manifest = dict[str, Any]

_MANIFEST, _MERGED, _SHARDS = "manifest.json", "merged", "rows-*.npz"
# What a killed run leaves behind; the second is the result before it gets its name.
_LEFTOVERS = (".manifest.json.*", _MERGED, ".merged.*", ".rows-*")


class WorkFolder:
    """Where the shards of one run wait for the last of them."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(f"{out.name}.parts")

    @contextlib.contextmanager
    def opened(self, manifest: Manifest, *, fresh: bool) -> Iterator[None]:
        """The folder, ready for this run alone; refuses to continue another one."""
        with locked(self.path):
            self._remove(*_LEFTOVERS)
            if fresh:
                self._remove(_SHARDS, _MANIFEST)
            self._check(manifest)
            self._write(_MANIFEST, lambda file: file.write(_as_text(manifest)))
            try:
                yield
            finally:
                if not self._found(_SHARDS):  # finished, or failed before anything was done
                    self._close()

    def _check(self, manifest: Manifest) -> None:
        """An error if there are shards of another run."""
        if not self._found(_SHARDS):
            return
        try:
            found = json.loads((self.path / _MANIFEST).read_text(encoding="utf-8"))
        except (ValueError, FileNotFoundError):
            found = {}
        changed = [name for name in manifest if manifest[name] != found.get(name)]
        if changed:
            listed = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
            raise ValueError(
                f"`{self.path}` holds an unfinished run with other {listed}. Run it as before to "
                "finish it, or drop what it has done with `fresh=True`."
            )

    def missing(self, shards: list[Span]) -> list[Span]:
        """The shards that are still to be computed."""
        return [span for span in shards if not is_whole(self._shard(span))]

    def add(self, shard: Shard) -> None:
        """Writes a shard; from here on it is done."""
        self._write(self._shard(shard.span).name, shard.write)

    def has(self, span: Span) -> bool:
        """Whether a shard is there."""
        return self._shard(span).exists()

    def read(self, span: Span) -> Shard:
        """A finished shard."""
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
        """Writes a file that has its data on the disk before it has its name.

        Else a loss of power could leave a name without data.
        """

        def durably(file: IO[bytes]) -> None:
            write(file)
            file.flush()
            os.fsync(file.fileno())

        write_atomically(self.path / name, durably)

    def _remove(self, *patterns: str) -> None:
        for path in self._found(*patterns):
            path.unlink()

    def _found(self, *patterns: str) -> list[Path]:
        return [path for pattern in patterns for path in sorted(self.path.glob(pattern))]

    def _shard(self, span: Span) -> Path:
        return self.path / f"rows-{span.start:012d}-{span.stop:012d}.npz"


def _as_text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()
