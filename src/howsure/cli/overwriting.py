"""Refuses to write where a command reads."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path

_WRITTEN = ("out", "heatmap")


def check_outputs(options: Namespace) -> None:
    """An error if a result would replace, or clear the folder of, something that is read."""
    given = vars(options)
    read = [path for name in given.keys() - {*_WRITTEN} for path in _files(given[name])]
    written = [out for name in _WRITTEN if isinstance(out := given.get(name), Path)]
    for out, path in product(written, sorted(read)):
        if _is_lost(path, out):
            raise ValueError(
                f"`{out}` would be written over `{path}`, which is read; choose another place."
            )


def _files(value: object) -> Iterator[Path]:
    """What an option names: a file or folder, one behind `NAME=`, or the file of a factory."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _files(item)
    elif isinstance(value, str | Path):
        text = str(value)
        module = text.partition(":")[0].replace(".", "/") + ".py"
        for name in (text, text.partition("=")[2], module):
            try:
                if name and Path(name).exists():
                    yield Path(name)
            except (OSError, ValueError):  # too long for a name, or with a zero in it
                continue


def _is_lost(path: Path, out: Path) -> bool:
    """Whether writing `out`, and its folder of unfinished parts, takes away `path`."""
    source = path.resolve()
    cleared = (out.resolve(), out.with_name(f"{out.name}.parts").resolve())
    inside = any(place == source or place in source.parents for place in cleared)
    return inside or (out.exists() and out.samefile(path))
