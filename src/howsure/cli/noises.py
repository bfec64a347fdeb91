"""The sensor's noise from options, and in files of its own."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from howsure import noise as noises
from howsure.data.reading.arrays import open_npy
from howsure.files import write_atomically
from howsure.noise import Noise

_FORMAT = "howsure noise 1"


def noise_of(arguments: Namespace) -> object:
    """The noise that the options name: one, or a dict by input; `None` if there is none."""
    makers: dict[str, Callable[[str], Noise]] = {
        "--noise-std": lambda text: _constant(text, "stds"),
        "--noise-var": lambda text: _constant(text, "variances"),
        "--noise-covariance": _covariance,
        "--gray-levels": lambda text: _gray(text, arguments),
        "--noise": _named,
    }
    found: dict[str, Noise] = {}
    for option, make in makers.items():
        for text in getattr(arguments, option.strip("-").replace("-", "_")):
            name, _, value = text.rpartition("=")
            if name in found:
                what = f"of `{name}` " if name else ""
                raise ValueError(
                    f"The noise {what}is given twice, also by `{option}`; once will do."
                )
            found[name] = _made(make, value, option)
    if "" in found and len(found) > 1:
        raise ValueError("Give the noise of all inputs, or of each by `NAME=`, but not both.")
    return found.get("", found or None)


def _made(make: Callable[[str], Noise], value: str, option: str) -> Noise:
    try:
        return make(value)
    except (FileNotFoundError, PermissionError):
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{option} {value}`: {error}") from None


def _constant(text: str, kind: str) -> Noise:
    """One number for everything, one per channel (dimension 1), or a tensor from a file."""
    one = noises.std if kind == "stds" else noises.variance
    if text.endswith(".npy"):
        return one(_tensor(Path(text)))
    values = _numbers(text)
    if len(values) == 1:
        return one(values[0])
    by_variance = kind == "variances"
    return noises.per_channel(
        variances=values if by_variance else None, stds=None if by_variance else values
    )


def _tensor(path: Path) -> Tensor:
    return torch.tensor(open_npy(path).tolist(), dtype=torch.float64)


def _covariance(text: str) -> Noise:
    """A covariance from a file, for all elements of an input or, after a colon, along an axis."""
    name, colon, axis = text.partition(".npy:")
    if colon and not axis.lstrip("-").isdecimal():
        raise ValueError(f"the axis {axis!r} must be a number, as in `FILE.npy:1`.")
    matrix = _tensor(Path(f"{name}.npy" if colon else text))
    return noises.correlated(covariance=matrix, axis=int(axis) if colon else None)


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ValueError("give a number, or several with commas between them.") from None


def _gray(text: str, arguments: Namespace) -> Noise:
    """Gray levels after the same scale and normalisation as the images."""
    std = list(arguments.normalize_std)
    return noises.gray_levels(
        _numbers(text)[0],
        scale=arguments.scale or 255,
        normalize_std=None if not std else std[0] if len(std) == 1 else std,
    )


def _named(text: str) -> Noise:
    """A noise by its kind and the numbers of its class, `range_dependent:0.01,0.002`, or a file.

    Several with + between them add up: `common_mode:0.05+noise.json`.
    """
    # The sign of an exponent, as in 1e+3, is not followed by a word.
    parts = re.split(r"\+(?=[^\d.])", text)
    if len(parts) > 1 and not Path(text).exists():
        first, *others = map(_named, parts)
        return sum(others, start=first)
    kind, colon, numbers = text.partition(":")
    if _is_number(text) and not Path(text).exists():
        raise ValueError("a number may be a variance or a std; say `--noise-var` or `--noise-std`.")
    if not colon or Path(text).exists():
        return read_noise(Path(text))
    return Noise.of_kind(kind).from_numbers(*_numbers(numbers))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_noise(path: Path, noise: Noise) -> None:
    """Writes a noise as JSON."""
    content = json.dumps({"format": _FORMAT, "noise": noises.to_config(noise)}, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(content), text=True)


def read_noise(path: Path) -> Noise:
    """The noise that `write_noise` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ours = content["format"] == _FORMAT
        found = noises.as_noise(noises.from_config(content["noise"])) if ours else None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        found = None
    if found is None:
        raise ValueError(f"`{path}` is not a file that `howsure noise --out` wrote.")
    return found
