"""Options that several commands share, each with the type that checks it.

What can be refused by looking at the words alone is refused here, before torch is imported, which
takes seconds: this file must not import it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every command has."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    group.add_argument("-q", "--quiet", action="store_true", help="no bars, no notes")
    group.add_argument("--debug", action="store_true", help="a traceback instead of a sentence")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the model and its weights."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="`package.module:factory`, or a `.pt2` of torch.export, which needs --trust",
    )
    group = parser.add_argument_group("model")
    group.add_argument(
        "--weights", metavar="FILE", help="`.safetensors`, `.pt` or `.pth`, for a factory"
    )
    group.add_argument(
        "--model-args",
        metavar="JSON",
        type=_json_object,
        default={},
        help="keyword arguments of the factory, such as '{\"hidden\": 64}'",
    )
    group.add_argument(
        "--trust", action="store_true", help="load a `.pt2`, which can run code of its own"
    )


def add_data(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Adds the options for the data and how to read it."""
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs=None if needed else "?",
        help="`.npz`, `.npy`, `.csv`, `.parquet`, or a folder of images",
    )
    group = parser.add_argument_group("data")
    group.add_argument(
        "--inputs",
        metavar="[ARG=]NAMES",
        action="append",
        default=[],
        help="which array, or which columns (a,b,c), the model sees; once for each of several "
        "arguments of the model: ARG=NAMES (the array `x`, or all columns but the target)",
    )
    group.add_argument(
        "--target",
        metavar="NAME",
        help="the true values, left aside where none are needed: array, columns (a,b), or a file "
        "`.npy`; for images `folders`, or a `.csv` with a column `file` (`y`)",
    )
    group.add_argument(
        "--scale", type=positive, metavar="S", help="divide by S first (images: 255)"
    )
    group.add_argument(
        "--normalize-mean", type=numbers, default=(), metavar="M[,M...]", help="then subtract"
    )
    group.add_argument(
        "--normalize-std", type=numbers, default=(), metavar="S[,S...]", help="then divide by"
    )
    group.add_argument(
        "--image-size", type=_size, metavar="H,W", help="bring images to this height and width"
    )
    group.add_argument("--gray", action="store_true", help="read images as gray, not as RGB")
    group.add_argument(
        "--max-bytes",
        type=count,
        metavar="N",
        help="the most that a compressed array (4 GiB) or an image (256 MiB) may unpack to",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """An example's shape, in place of data."""
    parser.add_argument(
        "--shape",
        metavar="[ARG=]SHAPE",
        action="append",
        default=[],
        help="shape of one input, such as 3,32,32, in place of data",
    )


def add_noise(parser: argparse.ArgumentParser) -> None:
    """The sensor's noise, in the units in which the model sees its input."""
    group = parser.add_argument_group(
        "sensor noise, in the units that the model sees; NAME= for one of several inputs"
    )
    for option, metavar, kind, words in (
        ("--noise-std", "[NAME=]S", noise, "std: a number, one per channel, or a `.npy`"),
        ("--noise-var", "[NAME=]V", noise, "variance, likewise"),
        ("--gray-levels", "[NAME=]K", noise, "std of a camera with `--scale` levels (255)"),
        (
            "--noise",
            "[NAME=]FILE",
            str,
            "a file of `howsure noise`; KIND:NUMBERS; a covariance `.npy`, or `.npy:1` along axis "
            "1; + between them adds",
        ),
    ):
        group.add_argument(
            option, metavar=metavar, type=kind, action="append", default=[], help=words
        )


def add_method(parser: argparse.ArgumentParser, *, choose: bool = True) -> None:
    """Adds the options that become settings of `Uncertain`."""
    group = parser.add_argument_group("method; what is given here is stronger than the settings")
    group.add_argument("--settings", metavar="FILE", help="what `howsure fit` wrote")
    if choose:
        group.add_argument(
            "--method",
            type=_method,
            help="auto, gradients, noise_sampling, linear, mc_dropout, adf, sampled_adf (the "
            "paper's), constant, heteroscedastic",
        )
    group.add_argument("--rate", type=rates, metavar="P", help="dropout rate, or one per layer")
    group.add_argument(
        "--samples", type=count, metavar="T", help="noisy points, or Monte-Carlo samples"
    )
    group.add_argument(
        "--tolerance",
        type=positive,
        metavar="E",
        help="in place of --samples: go on until every std is known to this share (0.05)",
    )
    group.add_argument(
        "--output",
        type=_key,
        metavar="KEY",
        help="which part of the model's output counts: a key, an attribute or an index",
    )
    group.add_argument(
        "--batch-dim",
        type=_axis,
        metavar="AXIS",
        help="the axis that counts the inputs (0), or none: a call is one input",
    )
    group.add_argument(
        "--placement", help="where dropout goes: auto, after, before, existing, or layers (a,b)"
    )
    group.add_argument("--task", choices=("regression", "classification", "binary", "multilabel"))
    group.add_argument(
        "--prediction",
        choices=("mean", "network"),
        help="mean: over the noise; network: the plain output",
    )
    group.add_argument("--residual-var", type=_variance, help="added to the data's variance")
    group.add_argument("--seed", type=int, help="same seed, same result (0)")


def add_batch(parser: argparse.ArgumentParser, default: int = 256) -> None:
    """Adds the option for how many rows run at once."""
    parser.add_argument(
        "--batch",
        type=count,
        default=default,
        metavar="N",
        help="rows that run at once (%(default)s)",
    )


def add_clean(parser: argparse.ArgumentParser) -> None:
    """Adds the option for held-out data without the noise of deployment."""
    parser.add_argument("--clean", action="store_true", help="the data has no noise yet: add it")


def add_rows(parser: argparse.ArgumentParser, default: int) -> None:
    """Adds the option for how many rows are looked at."""
    parser.add_argument(
        "--rows",
        type=count,
        default=default,
        metavar="N",
        help="at most so many rows (%(default)s)",
    )


def add_out(
    parser: argparse.ArgumentParser,
    suffixes: Sequence[str],
    words: str,
    *,
    default: str | None = None,
    required: bool = False,
) -> None:
    """Adds the option for the file that is written; `howsure.cli.paths` looks at its name."""
    shown = f"{words} (%(default)s)" if default else words
    parser.add_argument("--out", type=Path, default=default, required=required, help=shown)
    parser.set_defaults(suffixes=tuple(suffixes))


def checked(
    convert: Callable[[str], Value], fits: Callable[[Value], bool], words: str
) -> Callable[[str], Value]:
    """A type of option: what `convert` makes of the text, if it fits."""

    def parsed(text: str) -> Value:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"must be {words}, not {text}")
        return value

    return parsed


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def _height_and_width(text: str) -> tuple[int, int]:
    height, *width = (int(each) for each in text.split(","))
    (width,) = width or (height,)
    return height, width


count = checked(int, lambda value: value >= 1, "a whole number of at least 1")
at_least_0 = checked(int, lambda value: value >= 0, "a whole number of at least 0")
positive = checked(float, lambda value: 0 < value < math.inf, "a positive number")
level = checked(float, lambda value: 0 < value < 1, "between 0 and 1, such as 0.95")
numbers = checked(_numbers, bool, "numbers with commas between them")
rates = checked(
    _numbers,
    lambda values: all(0 <= rate < 1 for rate in values),
    "numbers with commas between them, each at least 0 and below 1",
)
_variance = checked(float, lambda value: 0 <= value < math.inf, "0 or more")
_size = checked(_height_and_width, lambda sides: min(sides) >= 1, "HEIGHT,WIDTH in pixels")
_noise_numbers = checked(
    _numbers,
    lambda values: all(0 <= number < math.inf for number in values),
    "a number, or several with commas between them, which cannot be negative",
)


def noise(text: str) -> str:
    """`[NAME=]NUMBERS`, as it is, if the numbers can be noise; a file is looked at later."""
    value = text.rpartition("=")[2]
    if not value.endswith(".npy"):
        _noise_numbers(value)
    return text


def _method(name: str) -> str:
    """Every method is a module of its room, which can be seen without importing it."""
    room = find_spec("howsure.methods")
    assert room is not None and room.submodule_search_locations
    folder = Path(room.submodule_search_locations[0])
    gone = ("adjoint", "control_variate")  # which the room itself has a word for
    if name not in ("auto", *gone) and not (folder / f"{name}.py").is_file():
        raise argparse.ArgumentTypeError(f"There is no method {name!r}")
    return name


def _key(text: str) -> str | int:
    """A key or an attribute; digits are an index."""
    return int(text) if text.isdecimal() else text


def _axis(text: str) -> str | int:
    """An axis; "none" stays a word, since `None` says that the option was not given."""
    if text != "none" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an axis such as 0, or none, not {text}")
    return text if text == "none" else int(text)


def _json_object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text}")
    return found
