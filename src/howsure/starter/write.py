"""Copies the example project into a new folder, all of it or nothing."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from howsure.files import write_atomically

FILES = ("README.md", "model.py", "make_data.py")


def write_project(folder: Path) -> tuple[Path, ...]:
    """The files that were written into a new or empty folder; nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"`{folder}` exists and is not empty; give the name of a new folder.")
    new = not folder.exists()
    try:
        return tuple(_written(folder, name) for name in FILES)
    except OSError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _written(folder: Path, name: str) -> Path:
    template = resources.files("howsure.starter") / "project" / name
    text = template.read_text(encoding="utf-8")
    write_atomically(folder / name, lambda file: file.write(text), text=True)
    return folder / name
