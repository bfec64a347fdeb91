"""Identifies a sensor's noise from its own readings, with standard errors.

DATA holds repeated readings of something that does not move, one per row: frames of a static
scene, or an inertial sensor at rest. The noise is in the readings' units, or, with `--scale` and
`--normalize-*`, in those that the model sees.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from howsure.cli.options import add_data
from howsure.cli.result import Result

HELP = "identifies a sensor's noise from repeated readings"
EXAMPLES = """
  howsure noise frames.npz --scale 255 --out noise.json
  howsure noise frames/ --kind camera --saturation 0,255 --out noise.json
  howsure noise imu.csv --per element --drift
  howsure noise photo.npy --kind image
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure noise` to its parser."""
    add_data(parser)
    parser.add_argument("--out", type=Path, help="the noise, a `.json` file for `--noise`")
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
        "--saturation", metavar="LOW,HIGH", help="readings at these limits are left out"
    )
    parser.add_argument(
        "--black-level", type=float, default=0.0, metavar="B", help="camera: reading in the dark"
    )


def run(arguments: argparse.Namespace) -> Result:
    """The noise and its standard error."""
    from howsure.cli.identifying import identified, in_model_units, noise_found, readings_of
    from howsure.cli.noises import write_noise
    from howsure.noise import to_config

    _check_out(arguments.out)
    found = identified(readings_of(arguments), arguments)
    own = noise_found(found, arguments.kind)
    noise = in_model_units(own, arguments)
    text = found.in_words()
    if noise is not own:
        text += "\nThe file has it in the units after scale and normalisation."
    if arguments.out is not None:
        write_noise(arguments.out, noise)
        text += f"\nNoise: {arguments.out}"
    data: dict[str, object] = {"out": arguments.out, **found.numbers(), "noise": to_config(noise)}
    return Result(text, data, in_file=arguments.out is not None)


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix != ".json":
        raise ValueError(f"`--out {out}` must end in `.json`.")
