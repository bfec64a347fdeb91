"""The example project that `howsure init` writes; its files are in `project/`, as they are."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from howsure.files import write_atomically

FILES = ("README.md", "model.py", "make_data.py")


def write_project(folder: Path) -> tuple[Path, ...]:
    """The files that were written into a new or empty folder; nothing is overwritten.

    A folder in which an earlier call was killed is completed.
    """
    if folder.exists() and (not folder.is_dir() or not _is_begun(folder)):
        raise ValueError(f"`{folder}` exists and is not empty; give the name of a new folder.")
    new = not folder.exists()
    try:
        return tuple(_written(folder, name) for name in FILES)
    except OSError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _is_begun(folder: Path) -> bool:
    """Whether a folder has some of our files, as we write them, and nothing else."""
    left = [
        path for path in folder.iterdir() if path.name.startswith(tuple(f".{n}." for n in FILES))
    ]
    rest = [path for path in folder.iterdir() if path not in left]
    ours = [path for path in rest if path.name in FILES and path.read_text() == _text(path.name)]
    if len(ours) < len(rest) or len(ours) == len(FILES):
        return False
    for path in left:
        path.unlink()
    return True


def _written(folder: Path, name: str) -> Path:
    write_atomically(folder / name, lambda file: file.write(_text(name)), text=True)
    return folder / name


def _text(name: str) -> str:
    template = resources.files("howsure.cli.starter") / "project" / name
    return template.read_text(encoding="utf-8")
