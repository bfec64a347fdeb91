"""From options and files to objects of the library: model, data, noise, settings, wrapper."""

from __future__ import annotations

import io
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from howsure import Uncertain
from howsure import noise as noises
from howsure.cli.result import plain
from howsure.data.reading import (
    Choice,
    Data,
    Inputs,
    Model,
    Preparation,
    Source,
    load_model,
    open_data,
)
from howsure.data.reading.files import open_npy
from howsure.files import write_atomically
from howsure.fit.method import FitResult
from howsure.methods.method import check_method
from howsure.multipliers.sites import PLACEMENTS, as_placement
from howsure.noise import Noise
from howsure.report.reproduce import decoded
from howsure.trees import TensorTree, as_call, map_leaves

Value = TypeVar("Value")

_NOISE_FORMAT, _SETTINGS_FORMAT = "howsure noise 1", "howsure settings 1"
_MOST_NUMBERS = 1_000_000  # in a text: 20 MB
_PLAIN = ("samples", "tolerance", "output", "task", "prediction", "residual_var", "seed")
_COVARIANCE = re.compile(r"(.*\.npy)(?::(.*))?")


# --- Model and data ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A wrapped model with its data.

    Attributes:
        sure: The model with its noise and method.
        data: Inputs and target.
        batch: Rows that run at once.
        fixed: Whether the model takes only so many.
    """

    sure: Uncertain
    data: Data
    batch: int
    fixed: bool = False

    def rows(self, most: int) -> Inputs:
        """The first rows in one piece."""
        return _first_rows(self.data.source, most)

    def pairs(self) -> list[tuple[Inputs, Tensor]]:
        """All batches of (inputs, targets)."""
        targets = self._target().split(self.batch)
        return list(zip(batches_of(self.data.source, self.batch), targets, strict=True))

    def _target(self) -> Tensor:
        """The target in the type and, where only a dimension of 1 differs, the output's shape."""
        target, setup = self.data.target(), self.sure.setup
        if setup.task != "regression":
            return target
        with torch.no_grad():
            outputs = TensorTree(setup.run(self.rows(self.batch if self.fixed else 1))).tensors
        if len(outputs) != 1:
            return target
        target = target.to(outputs[0].dtype)
        fits = target[0].numel() == outputs[0][0].numel()
        return target.reshape(len(target), *outputs[0].shape[1:]) if fits else target


def case_of(arguments: Namespace) -> Case:
    """Model, data and method of a command line."""
    model = model_of(arguments)
    data = data_of(arguments, model)
    rows, batch = len(data.source), model.batch or getattr(arguments, "batch", 256)
    if model.batch is not None and rows % model.batch:
        raise ValueError(
            f"`{arguments.model}` takes {model.batch} rows at a time, and {rows} rows are not a "
            "multiple; export it with `dynamic_shapes` for the batch, or give other data."
        )
    check_runs(model, _first_rows(data.source, model.batch or 1))
    return Case(uncertain_of(arguments, model), data, batch, model.batch is not None)


def model_of(arguments: Namespace) -> Model:
    """The model that is named."""
    weights, factory = arguments.weights, arguments.model_args
    return load_model(arguments.model, weights, factory, trust=arguments.trust)


def data_of(arguments: Namespace, model: Model) -> Data:
    """The data, read as the options say, in the model's type."""
    mean, std = arguments.normalize_mean, arguments.normalize_std
    preparation = Preparation(arguments.scale, mean, std, model.dtype)
    return open_data(arguments.data, choice_of(arguments, preparation))


def choice_of(arguments: Namespace, preparation: Preparation) -> Choice:
    """How the options say that the data are read."""
    return Choice(
        inputs=_by_argument("--inputs", arguments.inputs),
        target=getattr(arguments, "target", None),
        preparation=preparation,
        image_size=arguments.image_size,
        gray=arguments.gray,
        max_bytes=arguments.max_bytes,
    )


def _by_argument(option: str, pairs: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """The values of an option by argument of the model, "" for the only one."""
    values = dict(pairs)
    if len(values) < len(pairs) or (len(values) > 1 and "" in values):
        raise ValueError(
            f"Several `{option}` need the names of the model's arguments, each its own: "
            f"`{option} image=... {option} motion=...`."
        )
    return values


def _first_rows(source: Source, count: int) -> Inputs:
    return source.rows(0, min(count, len(source)))


def batches_of(source: Source, size: int, most: int | None = None) -> Iterator[Inputs]:
    """The rows in batches: all, or the first ones."""
    count = len(source) if most is None else min(most, len(source))
    return (source.rows(start, min(start + size, count)) for start in range(0, count, size))


def check_runs(model: Model, x: object) -> None:
    """An error in one sentence if the plain model does not take such inputs."""
    args, kwargs = as_call(x)
    printed = io.StringIO()  # torch prints the generated source of a program that fails
    try:
        with torch.no_grad(), redirect_stderr(printed):
            model.module(*args, **kwargs)
    except Exception as error:
        shapes = map_leaves(lambda leaf: tuple(leaf.shape), x)
        raise ValueError(
            f"The model does not run on inputs of shape {shapes}: {type(error).__name__}: {error}"
        ) from error
    sys.stderr.write(printed.getvalue())


def uncertain_of(arguments: Namespace, model: Model) -> Uncertain:
    """The wrapper: from the settings' file, then from the options, which are stronger."""
    settings = {name: value for name in _PLAIN if (value := getattr(arguments, name)) is not None}
    if arguments.batch_dim is not None:
        settings["batch_dim"] = None if arguments.batch_dim == "none" else arguments.batch_dim
    if (noise := noise_of(arguments)) is not None:
        settings["noise"] = noise
    if arguments.rate is not None:
        settings["rate"] = number_or_list(arguments.rate)
    if arguments.placement is not None:
        text = arguments.placement
        settings["placement"] = as_placement(text if text in PLACEMENTS else text.split(","))
    sure = Uncertain(model.module)
    if arguments.settings is not None:
        sure = read_settings(arguments.settings, model.module)
    method = getattr(arguments, "method", None)
    if method is not None:
        check_method(method)
        sure.method = method
    sure.setup = sure.setup.replace(**settings)
    return sure


def check_unsure(sure: Uncertain) -> None:
    """An error in the words of the command line if "auto" will have nothing to choose by."""
    setup = sure.setup
    known = setup.noise is not None or setup.rate is not None or setup.is_fitted
    if sure.method == "auto" and not known and setup.placement.kind != "existing":
        raise ValueError(
            "No source of uncertainty: give the sensor's noise (`--noise-std`), a dropout rate "
            "(`--rate`), or what `howsure fit` found (`--settings`)."
        )


def example_of(arguments: Namespace, model: Model) -> Inputs:
    """Inputs to try the model with: the first rows of the data, or random ones of a shape."""
    if (arguments.data is None) == (not arguments.shape):
        raise ValueError("Give either DATA or `--shape`, such as `--shape 3,32,32`.")
    count = model.batch or 2
    if arguments.data is not None:
        x = _first_rows(data_of(arguments, model).source, count)
    else:
        generator = torch.Generator().manual_seed(0)
        inputs = {
            argument: torch.rand(count, *shape, generator=generator, dtype=model.dtype)
            for argument, shape in _by_argument("--shape", arguments.shape).items()
        }
        x = inputs.get("", inputs)
    check_runs(model, x)
    return x


def shows_progress(arguments: Namespace) -> bool:
    """Whether a progress bar would be seen."""
    return not arguments.quiet and sys.stderr.isatty()


# --- Noise ------------------------------------------------------------------------------------


def noise_of(arguments: Namespace) -> object:
    """The noise that the options name: one, or a dict by input; `None` if there is none."""

    def gray(levels: Sequence[float]) -> Noise:
        """Gray levels after the same scale and normalization as the images."""
        std = arguments.normalize_std
        return noises.gray_levels(
            levels[0],
            scale=arguments.scale or 255,
            normalize_std=number_or_list(std) if std else None,
        )

    makers: dict[str, Callable[[Any], Noise]] = {
        "--noise-std": lambda value: _constant(value, noises.std, "stds"),
        "--noise-var": lambda value: _constant(value, noises.variance, "variances"),
        "--gray-levels": gray,
        "--noise": _named,
    }
    by_input: dict[str, Noise] = {}
    for option, make in makers.items():
        for name, value in getattr(arguments, option.strip("-").replace("-", "_")):
            if name in by_input:
                what = f" of `{name}`" if name else ""
                raise ValueError(f"Noise{what} given twice (also by `{option}`); give it once.")
            try:
                by_input[name] = make(value)
            except (TypeError, ValueError) as error:
                what = f"{option} {value}" if isinstance(value, str) else option
                raise ValueError(f"`{what}`: {error}") from None
    if "" in by_input and len(by_input) > 1:
        raise ValueError("Give the noise of all inputs, or of each by `NAME=`, but not both.")
    return by_input.get("", by_input or None)


def _constant(value: Sequence[float] | str, one: Callable[..., Noise], several: str) -> Noise:
    """One number for everything, one per channel (dimension 1), or a tensor from a file."""
    if isinstance(value, str):
        return one(_tensor(value))
    if len(value) == 1:
        return one(value[0])
    return noises.per_channel(**{several: list(value)})  # pyright: ignore[reportArgumentType]


def _tensor(file: str) -> Tensor:
    return torch.tensor(open_npy(Path(file)).tolist(), dtype=torch.float64)


def number_or_list(values: Sequence[float]) -> float | list[float]:
    """The only number, or one for each channel."""
    return values[0] if len(values) == 1 else list(values)


def _named(text: str) -> Noise:
    """A file of `howsure noise`, a covariance, or a kind of noise with the numbers of its class.

    `range_dependent:0.01,0.002`; `cov.npy` for all elements of an input, `cov.npy:1` along an axis.
    Several with + between them add up: `common_mode:0.05+noise.json`.
    """
    is_file = Path(text).exists()
    if not is_file:
        # The sign of an exponent, as in 1e+3, is not followed by a word.
        first, *terms = re.split(r"\+(?=[^\d.])", text)
        if terms:
            return sum(map(_named, terms), start=_named(first))
    if covariance := _COVARIANCE.fullmatch(text):
        file, axis = covariance.groups()
        if axis is not None and not axis.lstrip("-").isdecimal():
            raise ValueError(f"the axis {axis!r} must be a number, as in `FILE.npy:1`.")
        return noises.correlated(covariance=_tensor(file), axis=None if axis is None else int(axis))
    kind, colon, numbers = text.partition(":")
    if colon and not is_file:
        return Noise.of_kind(kind).from_numbers(*map(float, numbers.split(",")))
    if re.fullmatch(r"[-+.\deE]+", text):
        raise ValueError("a number may be a variance or a std; say `--noise-var` or `--noise-std`.")
    return read_noise(Path(text))


def write_noise(path: Path, noise: Noise) -> None:
    """Writes a noise as JSON."""
    _write_json(path, {"format": _NOISE_FORMAT, "noise": noises.to_config(noise)})


def read_noise(path: Path) -> Noise:
    """The noise that `write_noise` wrote."""
    content = read_json(path, "howsure noise", kind=_NOISE_FORMAT)
    try:
        noise = noises.as_noise(noises.from_config(content["noise"]))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        noise = None
    if noise is None:
        raise ValueError(f"`{path}` is not a file that `howsure noise --out` wrote.")
    return noise


# --- Settings ---------------------------------------------------------------------------------


def write_settings(path: Path, sure: Uncertain, fit: FitResult | None = None) -> None:
    """Writes what `fit` found for the other commands; a `.pt` has the settings alone."""
    if path.suffix == ".pt":
        sure.save(path)
        return
    model = sure.setup.variance_model
    size = 0 if model is None or model.posterior is None else model.posterior.whitening.numel()
    if size > _MOST_NUMBERS:
        raise ValueError(
            f"The posterior has {size:,} numbers, too many for a `.json`; give "
            f"`--out {path.with_suffix('.pt')}`."
        )
    settings = noises.encode(sure.get_extra_state())
    about = None if fit is None else plain(fit.to_dict())
    _write_json(path, {"format": _SETTINGS_FORMAT, "uncertain": settings, "fit": about})


def read_settings(name: str, model: nn.Module) -> Uncertain:
    """A model with the settings of a file of `howsure fit`, or of `Uncertain.save`."""
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with settings.")
    if path.suffix != ".json":
        return Uncertain.load(path, model)
    content = read_json(path, "howsure fit", kind=_SETTINGS_FORMAT)
    sure = Uncertain(model)
    try:
        sure.set_extra_state(decoded(content["uncertain"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The settings in `{path}` are not complete ({type(error).__name__}: {error}); they "
            "must be what `howsure fit --out` wrote."
        ) from None
    return sure


def _write_json(path: Path, content: dict[str, object]) -> None:
    text = json.dumps(content, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text), text=True)


def read_json(
    path: Path, command: str, keys: Collection[str] = (), *, kind: str | None = None
) -> dict[str, object]:
    """What a command wrote as JSON; an error if a key is missing, or the format is another."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = {}
    is_whole = isinstance(content, dict) and content.keys() >= set(keys)
    if not is_whole or content.get("format") != kind:
        raise ValueError(f"`{path}` is not a file that `{command} --out` wrote.")
    return content
