"""The sensor's noise from options, and in files of its own."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from howsure import noise as noises
from howsure.data.reading.arrays import open_npy
from howsure.files import write_atomically
from howsure.noise import Noise

_FORMAT = "howsure noise 1"
_COVARIANCE = re.compile(r"(.*\.npy)(?::(.*))?")


def noise_of(arguments: Namespace) -> object:
    """The noise that the options name: one, or a dict by input; `None` if there is none."""
    makers: dict[str, Callable[[str], Noise]] = {
        "--noise-std": lambda text: _constant(text, noises.std, "stds"),
        "--noise-var": lambda text: _constant(text, noises.variance, "variances"),
        "--gray-levels": lambda text: _gray(text, arguments),
        "--noise": _named,
    }
    by_input: dict[str, Noise] = {}
    for option, make in makers.items():
        for text in getattr(arguments, option.strip("-").replace("-", "_")):
            name, _, value = text.rpartition("=")
            if name in by_input:
                what = f"of `{name}` " if name else ""
                raise ValueError(
                    f"The noise {what}is given twice, also by `{option}`; once will do."
                )
            try:
                by_input[name] = make(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"`{option} {value}`: {error}") from None
    if "" in by_input and len(by_input) > 1:
        raise ValueError("Give the noise of all inputs, or of each by `NAME=`, but not both.")
    return by_input.get("", by_input or None)


def _constant(text: str, one: Callable[..., Noise], several: str) -> Noise:
    """One number for everything, one per channel (dimension 1), or a tensor from a file."""
    if text.endswith(".npy"):
        return one(_tensor(Path(text)))
    values = _numbers(text)
    if len(values) == 1:
        return one(values[0])
    return noises.per_channel(**{several: values})  # pyright: ignore[reportArgumentType]


def _tensor(path: Path) -> Tensor:
    return torch.tensor(open_npy(path).tolist(), dtype=torch.float64)


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ValueError("give a number, or several with commas between them.") from None


def number_or_list(values: Sequence[float]) -> float | list[float]:
    """The only number, or one for each channel."""
    return values[0] if len(values) == 1 else list(values)


def _gray(text: str, arguments: Namespace) -> Noise:
    """Gray levels after the same scale and normalization as the images."""
    std = arguments.normalize_std
    return noises.gray_levels(
        _numbers(text)[0],
        scale=arguments.scale or 255,
        normalize_std=number_or_list(std) if std else None,
    )


def _named(text: str) -> Noise:
    """A file of `howsure noise`, a covariance, or a kind of noise with the numbers of its class.

    `range_dependent:0.01,0.002`; `cov.npy` for all elements of an input, `cov.npy:1` along an axis.
    Several with + between them add up: `common_mode:0.05+noise.json`.
    """
    if not Path(text).exists():
        # The sign of an exponent, as in 1e+3, is not followed by a word.
        first, *others = re.split(r"\+(?=[^\d.])", text)
        if others:
            return sum(map(_named, others), start=_named(first))
    if covariance := _COVARIANCE.fullmatch(text):
        file, axis = covariance.groups()
        if axis is not None and not axis.lstrip("-").isdecimal():
            raise ValueError(f"the axis {axis!r} must be a number, as in `FILE.npy:1`.")
        matrix = _tensor(Path(file))
        return noises.correlated(covariance=matrix, axis=None if axis is None else int(axis))
    kind, colon, numbers = text.partition(":")
    if colon and not Path(text).exists():
        return Noise.of_kind(kind).from_numbers(*_numbers(numbers))
    if re.fullmatch(r"[-+.\deE]+", text):
        raise ValueError("a number may be a variance or a std; say `--noise-var` or `--noise-std`.")
    return read_noise(Path(text))


def write_noise(path: Path, noise: Noise) -> None:
    """Writes a noise as JSON."""
    content = json.dumps({"format": _FORMAT, "noise": noises.to_config(noise)}, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(content), text=True)


def read_noise(path: Path) -> Noise:
    """The noise that `write_noise` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ours = content["format"] == _FORMAT
        noise = noises.as_noise(noises.from_config(content["noise"])) if ours else None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        noise = None
    if noise is None:
        raise ValueError(f"`{path}` is not a file that `howsure noise --out` wrote.")
    return noise
