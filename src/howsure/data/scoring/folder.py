"""The folder of unfinished parts beside a result: a manifest, a lock, a file per finished shard.

Files get their names when they are complete. The manifest says what the run is about; only the same
run may continue it. A shard ends with a digest of itself, its name and the manifest: one that was
damaged, or belongs to other rows or another run, is computed again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from howsure.data.scoring.formats import Layout
from howsure.data.scoring.scorer import Shard, first_notes
from howsure.files import open_without_following, sealed, unsealed, write_atomically

_MANIFEST, _MERGED, _LOCK, _SHARDS = "manifest.json", ".result", "lock", "rows-*.npz"
_SHARD = r"rows-\d{12}-\d{12}\.npz"
# What a killed run leaves behind: temporary files, and the result before it gets its name. Files of
# other names are not ours.
_LEFTOVERS = (rf"\.({re.escape(_MANIFEST)}|{_SHARD}|\.result)\.[0-9a-f]{{16}}", r"\.result")


class WorkFolder:
    """Where the shards of one run wait for the last of them.

    Args:
        out: The result.
        shards: The rows of every shard, in order.
        manifest: What the run is about, as JSON has it.
    """

    def __init__(self, out: Path, shards: list[range], manifest: dict[str, object]) -> None:
        self.out, self.path = out, out.with_name(f"{out.name}.parts")
        self.shards, self.manifest = shards, manifest
        self.layout: Layout = {}
        self._notes: dict[range, tuple[str, ...]] = {}

    @contextlib.contextmanager
    def opened(self, *, fresh: bool) -> Iterator[None]:
        """The folder for this process alone; refuses to continue another run unless `fresh`."""
        with _locked(self.path):
            self._remove(*_LEFTOVERS, *((_SHARD, re.escape(_MANIFEST)) if fresh else ()))
            self._check_manifest()
            text = json.dumps(self.manifest, indent=2) + "\n"
            self._write(_MANIFEST, lambda file: file.write(text.encode()))
            try:
                yield
            finally:
                if not any(self.path.glob(_SHARDS)):  # finished, or failed before the first shard
                    self._remove(re.escape(_MANIFEST), _LOCK)
                    with contextlib.suppress(OSError):  # a file that is not ours keeps its folder
                        self.path.rmdir()

    def _check_manifest(self) -> None:
        """An error if there are shards of another run."""
        try:
            earlier = json.loads((self.path / _MANIFEST).read_text(encoding="utf-8"))
        except (ValueError, FileNotFoundError):
            return  # shards of another run do not have this manifest in their digest
        changed = [
            name
            for name, value in self.manifest.items()
            if not isinstance(earlier, dict) or earlier.get(name) != value
        ]
        if changed and any(self.path.glob(_SHARDS)):
            listed = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
            raise ValueError(
                f"`{self.path}` holds an unfinished run with other {listed}. Run it as before to "
                "finish it, or drop what it has done with `fresh=True`."
            )

    def holds(self, rows: range, inputs_digest: Callable[[range], str]) -> bool:
        """Whether the shard of these rows is done, and its inputs are still the same."""
        content = unsealed(self._shard(rows), self._context(rows))
        shard = None if content is None else Shard.read(io.BytesIO(content))
        if shard is None or shard.inputs != inputs_digest(rows):
            return False
        self._register(rows, shard)
        return True

    def add(self, rows: range, shard: Shard) -> None:
        """Writes a shard; from here on it is done."""
        self._register(rows, shard)
        content = sealed(shard.to_bytes(), self._context(rows))
        self._write(self._shard(rows).name, lambda file: file.write(content))

    def _register(self, rows: range, shard: Shard) -> None:
        """Notes what a shard has beside its rows; all shards must have the same columns."""
        layout = {name: (each.dtype, each.shape[1:]) for name, each in shard.columns.items()}
        self.layout = self.layout or layout
        for name in {**self.layout, **layout}:
            if self.layout.get(name) != layout.get(name):
                raise ValueError(
                    f"Rows {rows.start} to {rows.stop - 1}: the output `{name}` has dtype and "
                    f"shape {layout.get(name)}, and {self.layout.get(name)} elsewhere; all rows "
                    "of a file must be alike."
                )
        self._notes[rows] = shard.notes

    @property
    def notes(self) -> tuple[str, ...]:
        """The first notes of all shards."""
        return first_notes(note for rows in self.shards for note in self._notes[rows])

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        """The columns of every shard, each read when it is asked for."""
        for rows in self.shards:
            # Readers of zip files leave aside the digest that follows the archive.
            with np.load(self._shard(rows), allow_pickle=False) as columns:
                yield columns

    def finish(self, write: Callable[[IO[bytes]], object]) -> None:
        """Writes the result, gives it its name in one step, and removes the shards."""
        write_atomically(self.path / _MERGED, write, permissions_of=self.out)
        (self.path / _MERGED).replace(self.out)
        self._remove(_SHARD)

    def _context(self, rows: range) -> bytes:
        return json.dumps([self._shard(rows).name, self.manifest]).encode()

    def _shard(self, rows: range) -> Path:
        return self.path / f"rows-{rows.start:012d}-{rows.stop:012d}.npz"

    def _write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        write_atomically(self.path / name, write)

    def _remove(self, *patterns: str) -> None:
        """Deletes the files of the folder whose whole names match one of these expressions."""
        for path in list(self.path.iterdir()):
            if any(re.fullmatch(pattern, path.name) for pattern in patterns):
                path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for this process alone; an error if another has it.

    The system drops the lock when a process ends, also by a kill.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open_without_following(folder / _LOCK)
        except FileNotFoundError:
            continue  # another run has just finished and removed the folder
        with file:
            if not _lock(file):
                raise ValueError(
                    f"Another process is at work in `{folder}`; wait for it, or write to another "
                    "file."
                )
            # Not a lock on a file that another run has removed since it was opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat((folder / _LOCK).stat(), os.fstat(file.fileno())):
                    yield
                    return


def _lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: users must see to it themselves
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
