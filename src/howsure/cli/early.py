"""What can be refused at once: this file must not import torch, which takes its seconds."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path

# Options that name something to be read.
_READ = ("data", "weights", "settings", "train_inputs")
_NOISES = ("--noise-std", "--noise-var", "--gray-levels")


def check_early(options: Namespace) -> None:
    """One clear sentence for what needs neither the model nor the data to be seen as wrong."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in _READ if "inputs" in given else ():  # commands of others have a `data` of their own
        if name in given:
            _check_file(name, str(given[name]))
    for option in _NOISES:
        for text in given.get(_attribute(option), ()):
            _check_noise(option, text)
    for rate in given.get("rate", ()):
        if not 0 <= rate < 1:
            raise ValueError(f"`--rate` must be at least 0 and below 1, not {rate:g}.")
    if not 0 <= given.get("residual_var", 0.0) < math.inf:
        raise ValueError(f"`--residual-var` must be 0 or more, not {given['residual_var']:g}.")
    _check_method(given.get("method", "auto"))


def _attribute(option: str) -> str:
    return option.strip("-").replace("-", "_")


def _check_file(name: str, text: str) -> None:
    if not Path(text).exists():
        if name == "data":
            raise FileNotFoundError(f"There is no file or folder `{text}`.")
        raise FileNotFoundError(f"There is no file `{text}` (`--{name.replace('_', '-')}`).")


def _check_noise(option: str, text: str) -> None:
    value = text.rpartition("=")[2]
    if value.endswith(".npy"):
        return
    for number in _numbers(option, value):
        if not 0 <= number < math.inf:
            raise ValueError(
                f"`{option} {value}`: noise cannot be negative; give finite numbers of 0 or more."
            )


def _numbers(option: str, text: str) -> Iterator[float]:
    try:
        yield from map(float, text.split(","))
    except ValueError:
        raise ValueError(
            f"`{option} {text}`: give a number, or several with commas between them."
        ) from None


def _check_method(name: object) -> None:
    """Every method is a module of its room, which can be seen without importing it."""
    room = find_spec("howsure.methods")
    assert room is not None and room.submodule_search_locations
    folder = Path(room.submodule_search_locations[0])
    gone = ("adjoint", "control_variate")  # which the room itself has a word for
    if name not in ("auto", *gone) and not (folder / f"{name}.py").is_file():
        raise ValueError(f"There is no method {name!r}; see `--method` in the `--help`.")


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
