"""What can be refused at once: this file must not import torch, which takes its seconds."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
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
