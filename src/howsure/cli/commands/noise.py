"""Identifies a sensor's noise from its own readings, with standard errors.

DATA holds repeated readings of something that does not move, one per row: frames of a static
scene, or an inertial sensor at rest. The noise is in the readings' units, or, with `--scale` and
`--normalize-*`, in those that the model sees.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from howsure.cli.options import add_data, add_out, checked
from howsure.cli.result import Result

if TYPE_CHECKING:
    from torch import Tensor

    from howsure.noise import CameraFit, Identified, Noise

HELP = "identifies a sensor's noise from repeated readings"
EXAMPLES = """
  howsure noise frames.npz --scale 255 --out noise.json
  howsure noise frames/ --kind camera --saturation 0,255 --out noise.json
  howsure noise imu.csv --per element --drift
  howsure noise photo.npy --kind image
"""


def _limits(text: str) -> tuple[float, float]:
    low, high = (float(each) for each in text.split(","))
    return low, high


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure noise` to its parser."""
    add_data(parser)
    add_out(parser, [".json"], "the noise, a `.json` file for `--noise`")
    parser.add_argument(
        "--kind",
        choices=("constant", "correlated", "camera", "image"),
        default="constant",
        help="constant: one variance; correlated: also what elements have in common; camera: gain "
        "and read noise, from frames; image: a guess from the first row alone (%(default)s)",
    )
    parser.add_argument(
        "--per",
        choices=("all", "channel", "element"),
        default="all",
        help="one variance for everything, each channel, or each element (%(default)s)",
    )
    parser.add_argument("--drift", action="store_true", help="ignore a slow drift")
    parser.add_argument(
        "--saturation",
        type=checked(_limits, bool, "LOW,HIGH, such as 0,255"),
        metavar="LOW,HIGH",
        help="readings at these limits are left out",
    )
    parser.add_argument(
        "--black-level", type=float, default=0.0, metavar="B", help="camera: reading in the dark"
    )


def run(arguments: argparse.Namespace) -> Result:
    """The noise and its standard error."""
    from howsure.cli.noises import write_noise
    from howsure.noise import Identified, to_config

    identified = _identify(_readings(arguments), arguments)
    noise: Noise = identified.noise
    if arguments.kind == "correlated" and isinstance(identified, Identified):
        noise = identified.correlated
    text = identified.in_words()
    if arguments.scale is not None or arguments.normalize_mean or arguments.normalize_std:
        noise = _in_model_units(noise, arguments)
        text += "\nThe file has it in the units after scale and normalization."
    if arguments.out is not None:
        write_noise(arguments.out, noise)
        text += f"\nNoise: {arguments.out}"
    data = {"out": arguments.out, **identified.numbers(), "noise": to_config(noise)}
    return Result(text, data, in_file=arguments.out is not None)


def _readings(arguments: argparse.Namespace) -> Tensor:
    """All rows, in the file's own units and float64."""
    import torch

    from howsure.cli.building import choice_of
    from howsure.data.reading import Preparation, open_data

    if arguments.image_size is not None:
        raise ValueError("Resizing averages the noise away; leave out `--image-size`.")
    # Images would be divided by 255 unless told; the noise is in gray levels.
    source = open_data(
        arguments.data, choice_of(arguments, Preparation(scale=1.0, dtype=torch.float64))
    ).source
    rows = source.rows(0, len(source))
    if not isinstance(rows, torch.Tensor):
        raise ValueError("Identify the noise of one input at a time: `--inputs NAME`.")
    return rows


def _identify(readings: Tensor, arguments: argparse.Namespace) -> Identified | CameraFit:
    """The noise by the procedure that is asked for."""
    from howsure import noise

    per, limits, drift = arguments.per, arguments.saturation, arguments.drift
    if arguments.kind == "image":
        return noise.identify_from_image(readings[0], per=per, saturation=limits)
    if arguments.kind == "camera":
        return noise.fit_poisson_gaussian(
            readings, per=per, saturation=limits, drift=drift, black_level=arguments.black_level
        )
    return noise.identify_from_repeats(readings, per=per, saturation=limits, drift=drift)


def _in_model_units(noise: Noise, arguments: argparse.Namespace) -> Noise:
    """The noise after the scale and normalization that the model's inputs get."""
    from howsure.cli.noises import number_or_list

    if arguments.scale is not None:
        noise = noise.through_normalize(0, arguments.scale)
    mean, std = arguments.normalize_mean, arguments.normalize_std
    if mean or std:
        noise = noise.through_normalize(
            number_or_list(mean or (0.0,)), number_or_list(std or (1.0,))
        )
    return noise
