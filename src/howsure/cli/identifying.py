"""A sensor's noise from repeated readings in a file."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure import noise as noises
from howsure.data.reading import Choice, Group, Limits, Preparation, open_data
from howsure.noise import Noise


@dataclass(frozen=True, eq=False)
class Found:
    """An identified noise in words and numbers.

    Attributes:
        noise: The noise, in the readings' units.
        text: For people.
        data: Plain data.
    """

    noise: Noise
    text: str
    data: dict[str, Any]


def readings_of(arguments: Namespace) -> Tensor:
    """All rows, in the file's own units and float64."""
    choice = Choice(
        inputs=tuple(map(Group.parsed, arguments.inputs)),
        # Images would be divided by 255 unless told; the noise is in gray levels.
        preparation=Preparation(scale=1.0, dtype=torch.float64),
        image_size=arguments.image_size,
        gray=arguments.gray,
        limits=Limits(arguments.max_bytes),
    )
    if arguments.image_size is not None:
        raise ValueError("Resizing averages the noise away; leave out `--image-size`.")
    source = open_data(arguments.data, choice).source
    rows = source.rows(0, len(source))
    if not isinstance(rows, Tensor):
        raise ValueError("Identify the noise of one input at a time: `--inputs NAME`.")
    return rows


def identified(readings: Tensor, arguments: Namespace) -> Found:
    """The noise of the kind that is asked for."""
    limits = _limits(arguments.saturation)
    if arguments.kind == "image":
        found = noises.identify_from_image(readings[0], per=arguments.per, saturation=limits)
        return _constant(found)
    options: dict[str, Any] = {
        "per": arguments.per,
        "saturation": limits,
        "drift": arguments.drift,
    }
    if arguments.kind == "camera":
        black = arguments.black_level
        return _camera(noises.fit_poisson_gaussian(readings, black_level=black, **options))
    return _constant(noises.identify_from_repeats(readings, **options))


def _limits(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(each) for each in text.split(","))
    except ValueError:
        raise ValueError(f"`--saturation {text}` must be LOW,HIGH, such as 0,255.") from None
    return low, high


def _constant(found: noises.Identified) -> Found:
    var = torch.as_tensor(found.noise.var, dtype=torch.float64)
    error = torch.as_tensor(found.std_error, dtype=torch.float64)
    std = var.sqrt()
    # d std = d var / (2 std), to first order
    std_error = error / (2 * std.clamp(min=torch.finfo(torch.float64).tiny))
    text = f"std {_shown(std)} +- {_shown(std_error)}, variance {_shown(var)} +- {_shown(error)}"
    data = {"std": std, "std_error": std_error, "var": var, "var_error": error}
    return Found(found.noise, text, data)


def _camera(found: noises.CameraFit) -> Found:
    noise = found.noise
    read_var = torch.as_tensor(noise.read_std, dtype=torch.float64).square()
    text = (
        f"variance = gain * (reading - black level) + read variance\n"
        f"gain {_shown(noise.gain)} +- {_shown(found.gain_error)}, "
        f"read variance {_shown(read_var)} +- {_shown(found.read_var_error)}, "
        f"{_shown(100 * torch.as_tensor(found.rejected))} % of the pixels left out"
    )
    data = {
        "gain": noise.gain,
        "gain_error": found.gain_error,
        "read_var": read_var,
        "read_var_error": found.read_var_error,
        "rejected": found.rejected,
    }
    return Found(noise, text, data)


def _shown(value: Any) -> str:
    """One number; of several the range."""
    values = torch.as_tensor(value, dtype=torch.float64).flatten()
    if values.numel() == 1:
        return f"{float(values):.4g}"
    return f"{float(values.min()):.4g} to {float(values.max()):.4g}"


def in_model_units(noise: Noise, arguments: Namespace) -> Noise:
    """The noise after the scale and normalisation that the model's inputs get."""
    if arguments.scale is not None:
        noise = noise.through_normalize(0, arguments.scale)
    mean, std = list(arguments.normalize_mean), list(arguments.normalize_std)
    if mean or std:
        noise = noise.through_normalize(_one(mean, 0.0), _one(std, 1.0))
    return noise


def _one(values: list[float], default: float) -> Any:
    return default if not values else values[0] if len(values) == 1 else values
