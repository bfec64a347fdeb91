"""The options of the commands, each in one place, with the type that checks it.

What can be refused by looking at the words and at names of files is refused here, before torch is
imported, which takes seconds: this file must not import it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias, TypeVar

from howsure.files import check_trusted

Value = TypeVar("Value")

# --- Types ------------------------------------------------------------------------------------


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
    return tuple(float(number) for number in text.split(","))


def _height_and_width(text: str) -> tuple[int, int]:
    height, *width = (int(side) for side in text.split(","))
    (width,) = width or (height,)
    return height, width


def named(convert: Callable[[str], Value]) -> Callable[[str], tuple[str, Value]]:
    """`[NAME=]VALUE`: the name of a model's argument, "" for its only one, and the value."""

    def parsed(text: str) -> tuple[str, Value]:
        name, _, value = text.rpartition("=")
        return name.strip(), convert(value)

    return parsed


count = checked(int, lambda value: value >= 1, "a whole number of at least 1")
positive = checked(float, lambda value: 0 < value < math.inf, "a positive number")
level = checked(float, lambda value: 0 < value < 1, "between 0 and 1, such as 0.95")
numbers = checked(_numbers, bool, "numbers with commas between them")
rates = checked(
    _numbers,
    lambda values: all(0 <= rate < 1 for rate in values),
    "numbers with commas between them, each at least 0 and below 1",
)
limits = checked(_numbers, lambda values: len(values) == 2, "LOW,HIGH, such as 0,255")
_size = checked(_height_and_width, lambda sides: min(sides) >= 1, "HEIGHT,WIDTH in pixels")
_variance = checked(float, lambda value: 0 <= value < math.inf, "0 or more")
_noise_numbers = checked(
    _numbers,
    lambda values: all(0 <= value < math.inf for value in values),
    "a number, or several with commas between them, which cannot be negative",
)
_names = checked(
    lambda text: tuple(name.strip() for name in text.split(",")), all, "a list of names"
)
_shape = checked(
    lambda text: tuple(int(size) for size in text.split(",")),
    lambda sizes: min(sizes) >= 0 and math.prod(sizes) < 2**31,
    "a shape such as 3,32,32",
)
_json_object = checked(json.loads, lambda value: isinstance(value, dict), "a JSON object")
# An axis; "none" stays a word, since `None` says that the option was not given.
_axis = checked(
    lambda text: "none" if text == "none" else int(text),
    lambda axis: axis == "none" or int(axis) >= 0,
    "an axis such as 0, or none",
)


def _numbers_or_file(text: str) -> tuple[float, ...] | str:
    """Numbers that can be noise, or the name of a file, which is looked at later."""
    return text if text.endswith(".npy") else _noise_numbers(text)


def _key(text: str) -> str | int:
    """A key or an attribute; digits are an index."""
    return int(text) if text.isdecimal() else text


# The room of methods needs torch, so that the names stand here again.
METHODS = (
    "auto",
    "gradients",
    "noise_sampling",
    "linear",
    "mc_dropout",
    "adf",
    "sampled_adf",
    "constant",
    "heteroscedastic",
    "ensemble",
)
_GONE = ("adjoint", "control_variate")  # for which the room has a word


def _method(name: str) -> str:
    if name not in (*METHODS, *_GONE):
        listed = ", ".join(METHODS)
        raise argparse.ArgumentTypeError(f"There is no method {name!r}; there are {listed}")
    return name


# --- Options ----------------------------------------------------------------------------------

# Something that adds to a parser, or to a group of it.
Option: TypeAlias = Callable[[argparse._ActionsContainer], object]


def option(*names: str, **settings: object) -> Option:
    """An option or an argument, as `add_argument` takes it."""
    return lambda parser: parser.add_argument(*names, **settings)  # pyright: ignore[reportArgumentType]


def group(title: str, *options: Option) -> Option:
    """Options under a title of their own in the help."""

    def add(parser: argparse._ActionsContainer) -> None:
        titled = parser.add_argument_group(title)
        for add_option in options:
            add_option(titled)

    return add


def out(
    suffixes: Sequence[str], words: str, default: str | None = None, **settings: object
) -> Option:
    """The file that is written; `check_files` looks at its name."""

    def add(parser: argparse._ActionsContainer) -> None:
        description = f"{words} (%(default)s)" if default else words
        option("--out", type=Path, default=default, help=description, **settings)(parser)
        parser.set_defaults(suffixes=tuple(suffixes))

    return add


def batch(default: int = 256) -> Option:
    """How many rows run at once."""
    words = "rows per batch (%(default)s)"
    return option("--batch", type=count, default=default, metavar="N", help=words)


def rows(default: int) -> Option:
    """How many rows are looked at."""
    words = "maximum number of rows (%(default)s)"
    return option("--rows", type=count, default=default, metavar="N", help=words)


COMMON = group(
    "output",
    option("--json", action="store_true", help="print one JSON object to stdout"),
    option("-q", "--quiet", action="store_true", help="no bars, no notes"),
    option("--debug", action="store_true", help="print a traceback instead of a one-line error"),
)
MODEL = group(
    "model",
    option(
        "model",
        metavar="MODEL",
        help="`package.module:factory`, or a `.pt2` of torch.export, which needs --trust",
    ),
    option("--weights", metavar="FILE", help="`.safetensors`, `.pt` or `.pth`, for a factory"),
    option(
        "--model-args",
        metavar="JSON",
        type=_json_object,
        default={},
        help="keyword arguments of the factory, such as '{\"hidden\": 64}'",
    ),
    option("--trust", action="store_true", help="allow loading a `.pt2` file, which can run code"),
)
_HOW_TO_READ = (
    option(
        "--inputs",
        type=named(_names),
        metavar="[ARG=]NAMES",
        action="append",
        default=[],
        help=(
            "array, or columns (a,b,c), that the model takes; for several arguments of the "
            "model, ARG=NAMES once for each (the array `x`, or all columns but the target)"
        ),
    ),
    option(
        "--target",
        metavar="NAME",
        help=(
            "the true values, ignored where they are not needed: an array, columns (a,b), or a "
            "file `.npy`; for images, `folders` or a `.csv` with a column `file` (`y`)"
        ),
    ),
    option("--scale", type=positive, metavar="S", help="divide by S first (images: 255)"),
    option("--normalize-mean", type=numbers, default=(), metavar="M[,M...]", help="then subtract"),
    option("--normalize-std", type=numbers, default=(), metavar="S[,S...]", help="then divide by"),
    option(
        "--image-size", type=_size, metavar="H,W", help="resize images to this height and width"
    ),
    option("--gray", action="store_true", help="read images as gray, not as RGB"),
    option(
        "--max-bytes",
        type=count,
        metavar="N",
        help="largest unpacked size of a compressed array (4 GiB) or an image (256 MiB)",
    ),
)
_DATA_WORDS = "`.npz`, `.npy`, `.csv`, `.parquet`, or a folder of images"
DATA = group("data", option("data", metavar="DATA", help=_DATA_WORDS), *_HOW_TO_READ)
DATA_OR_SHAPE = group(
    "data",
    option("data", metavar="DATA", nargs="?", help=_DATA_WORDS),
    option(
        "--shape",
        type=named(_shape),
        metavar="[ARG=]SHAPE",
        action="append",
        default=[],
        help="shape of one input, such as 3,32,32, in place of data",
    ),
    *_HOW_TO_READ,
)
CLEAN = option("--clean", action="store_true", help="the data is clean: add the stated noise to it")


def _noise_option(
    name: str, metavar: str, words: str, convert: Callable[[str], object] = _numbers_or_file
) -> Option:
    kind = named(convert)
    return option(name, metavar=metavar, type=kind, action="append", default=[], help=words)


NOISE = group(
    "sensor noise, in the units that the model sees; NAME= for one of several inputs",
    _noise_option("--noise-std", "[NAME=]S", "std: a number, one per channel, or a `.npy`"),
    _noise_option("--noise-var", "[NAME=]V", "variance, likewise"),
    _noise_option(
        "--gray-levels",
        "[NAME=]K",
        "std of the camera noise in gray levels, of `--scale` levels in all (255)",
        _noise_numbers,
    ),
    _noise_option(
        "--noise",
        "[NAME=]FILE",
        "a file of `howsure noise`; KIND:NUMBERS; a covariance `.npy`, or `.npy:1` along axis 1; "
        "joined by +, they add up",
        str,
    ),
)
_SETTINGS = (
    option("--rate", type=rates, metavar="P", help="dropout rate, or one per layer"),
    option(
        "--samples",
        type=count,
        metavar="T",
        help="number of noisy points, or of Monte Carlo samples",
    ),
    option(
        "--tolerance",
        type=positive,
        metavar="E",
        help=(
            "instead of --samples: continue until the relative standard error of every std is "
            "below this (such as 0.05)"
        ),
    ),
    option(
        "--output",
        type=_key,
        metavar="KEY",
        help="selects the output to analyze: a key, an attribute or an index",
    ),
    option(
        "--batch-dim",
        type=_axis,
        metavar="AXIS",
        help="batch dimension (0), or none if a call is one input",
    ),
    option(
        "--placement", help="where dropout goes: auto, after, before, existing, or layers (a,b)"
    ),
    option("--task", choices=("regression", "classification", "binary", "multilabel")),
    option(
        "--prediction",
        choices=("mean", "network"),
        help="predict the mean over the noise, or the plain output of the network",
    ),
    option("--residual-var", type=_variance, help="constant that is added to the data variance"),
    option("--seed", type=int, help="random seed (0)"),
)
_SETTINGS_FILE = option("--settings", metavar="FILE", help="what `howsure fit` wrote")
# What becomes settings of `Uncertain`, without and with the choice of a method.
SETTINGS = group("settings (override --settings)", _SETTINGS_FILE, *_SETTINGS)
METHOD = group(
    "method (overrides --settings)",
    _SETTINGS_FILE,
    option(
        "--method",
        type=_method,
        help=", ".join(METHODS),
    ),
    *_SETTINGS,
)

# --- Names of files ---------------------------------------------------------------------------

# Options that name something to be read, and something to be written.
_READ = ("data", "weights", "settings", "train_inputs", "audit")
_WRITTEN = ("out", "heatmap")


def check_files(options: argparse.Namespace) -> None:
    """An error if a file is missing, or if a result has a wrong name or replaces what is read."""
    values = vars(options)
    read = [path for name in values.keys() - {*_WRITTEN} for path in _files(values[name])]
    written = [path for name in _WRITTEN if isinstance(path := values.get(name), Path)]
    for result, path in product(written, sorted(read)):
        if _is_lost(path, result):
            raise ValueError(
                f"`{result}` would be written over `{path}`, which is read; choose another place."
            )
    model = values.get("model")
    if isinstance(model, str) and model.endswith(".pt2") and "trust" in values:
        check_trusted(Path(model), trust=values["trust"])
    suffixes, result = values.get("suffixes"), values.get("out")
    if suffixes and result is not None and result.suffix not in suffixes:
        endings = " or ".join(f"`{suffix}`" for suffix in suffixes)
        raise ValueError(f"`--out {result}` must end in {endings}.")
    # Commands of others have a `data` of their own.
    for name in _READ if "inputs" in values else ():
        text = values.get(name)
        if text is not None and not Path(text).exists():
            if name == "data":
                raise FileNotFoundError(f"There is no file or folder `{text}`.")
            raise FileNotFoundError(f"There is no file `{text}` (`--{name.replace('_', '-')}`).")


def _files(value: object) -> Iterator[Path]:
    """What an option names: a file or folder, or the file of a factory."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _files(item)
    elif isinstance(value, str | Path):
        text = str(value)
        module = text.partition(":")[0].replace(".", "/") + ".py"
        for name in (text, module):
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
