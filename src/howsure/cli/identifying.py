"""A sensor's noise from repeated readings in a file."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from howsure import noise as noises
from howsure.data.reading import Choice, Group, Preparation, open_data
from howsure.noise import Noise


def readings_of(arguments: Namespace) -> Tensor:
    """All rows, in the file's own units and float64."""
    choice = Choice(
        inputs=tuple(map(Group.parsed, arguments.inputs)),
        # Images would be divided by 255 unless told; the noise is in gray levels.
        preparation=Preparation(scale=1.0, dtype=torch.float64),
        image_size=arguments.image_size,
        gray=arguments.gray,
        max_bytes=arguments.max_bytes,
    )
    if arguments.image_size is not None:
        raise ValueError("Resizing averages the noise away; leave out `--image-size`.")
    source = open_data(arguments.data, choice).source
    rows = source.rows(0, len(source))
    if not isinstance(rows, Tensor):
        raise ValueError("Identify the noise of one input at a time: `--inputs NAME`.")
    return rows


def identified(readings: Tensor, arguments: Namespace) -> noises.Identified | noises.CameraFit:
    """The noise by the procedure that is asked for."""
    limits = _limits(arguments.saturation)
    if arguments.kind == "image":
        return noises.identify_from_image(readings[0], per=arguments.per, saturation=limits)
    options: dict[str, Any] = {
        "per": arguments.per,
        "saturation": limits,
        "drift": arguments.drift,
    }
    if arguments.kind == "camera":
        black = arguments.black_level
        return noises.fit_poisson_gaussian(readings, black_level=black, **options)
    return noises.identify_from_repeats(readings, **options)


def noise_found(found: noises.Identified | noises.CameraFit, kind: str) -> Noise:
    """The noise that is asked for: independent, unless the kind says otherwise."""
    if kind == "correlated" and isinstance(found, noises.Identified):
        return found.correlated
    return found.noise


def _limits(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(each) for each in text.split(","))
    except ValueError:
        raise ValueError(f"`--saturation {text}` must be LOW,HIGH, such as 0,255.") from None
    return low, high


def in_model_units(noise: Noise, arguments: Namespace) -> Noise:
    """The noise after the scale and normalisation that the model's inputs get."""
    if arguments.scale is not None:
        noise = noise.through_normalize(0, arguments.scale)
    mean, std = list(arguments.normalize_mean), list(arguments.normalize_std)
    if mean or std:
        noise = noise.through_normalize(_one(mean, 0.0), _one(std, 1.0))
    return noise


def _one(values: list[float], default: float) -> object:
    return default if not values else values[0] if len(values) == 1 else values
