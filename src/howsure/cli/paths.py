"""Names of files: what must be there, and what must not be written over."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from howsure.files import check_trusted

# Options that name something to be read, and something to be written.
_READ = ("data", "weights", "settings", "train_inputs", "audit")
_WRITTEN = ("out", "heatmap")


def check_files(options: Namespace) -> None:
    """An error if a file is missing, or if a result has a wrong name or replaces what is read."""
    given = vars(options)
    read = [path for name in given.keys() - {*_WRITTEN} for path in _files(given[name])]
    written = [out for name in _WRITTEN if isinstance(out := given.get(name), Path)]
    for out, path in product(written, sorted(read)):
        if _is_lost(path, out):
            raise ValueError(
                f"`{out}` would be written over `{path}`, which is read; choose another place."
            )
    model = given.get("model")
    if isinstance(model, str) and model.endswith(".pt2") and "trust" in given:
        check_trusted(Path(model), trust=given["trust"])
    suffixes, out = given.get("suffixes"), given.get("out")
    if suffixes and out is not None and out.suffix not in suffixes:
        endings = ", ".join(f"`{suffix}`" for suffix in suffixes[:-1])
        endings = f"{endings} or `{suffixes[-1]}`" if endings else f"`{suffixes[-1]}`"
        raise ValueError(f"`--out {out}` must end in {endings}.")
    for name in _READ if "inputs" in given else ():  # commands of others have a `data` of their own
        text = given.get(name)
        if text is not None and not Path(text).exists():
            if name == "data":
                raise FileNotFoundError(f"There is no file or folder `{text}`.")
            raise FileNotFoundError(f"There is no file `{text}` (`--{name.replace('_', '-')}`).")


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
