"""From options to the objects of the library: model, data, `Uncertain`, examples, batches."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.cli.noises import noise_of
from howsure.cli.settings import read_settings
from howsure.data.reading import Choice, Data, Group, Preparation, load_model, open_data
from howsure.data.reading.models import Model
from howsure.data.reading.source import Inputs, Source
from howsure.methods import check_method
from howsure.multipliers import as_placement
from howsure.multipliers.sites import PLACEMENTS
from howsure.trees import TensorTree, as_call, map_leaves
from howsure.uncertain import Uncertain

_PLAIN = ("samples", "tolerance", "output", "task", "prediction", "residual_var", "seed")


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
        return self.data.source.rows(0, min(most, len(self.data.source)))

    def pairs(self) -> list[tuple[Inputs, Tensor]]:
        """All batches of (inputs, targets)."""
        source, target = self.data.source, self._target()
        starts = range(0, len(source), self.batch)
        spans = [(start, min(start + self.batch, len(source))) for start in starts]
        return [(source.rows(a, b), target[a:b]) for a, b in spans]

    def _target(self) -> Tensor:
        """The target in the type and, where only a dimension of 1 differs, the output's shape."""
        target = self.data.target()
        if self.sure.setup.task != "regression":
            return target
        output = _output(self.sure, self.rows(self.batch if self.fixed else 1))
        if output is None:
            return target
        fits = target[0].numel() == output[0].numel()
        target = target.to(output.dtype)
        return target.reshape(len(target), *output.shape[1:]) if fits else target


def case_of(arguments: Namespace) -> Case:
    """Model, data and method of a command line."""
    model = model_of(arguments)
    data = data_of(arguments, model)
    batch = _batch(arguments, model, data.source)
    check_runs(model, data.source.rows(0, min(batch if model.batch else 1, len(data.source))))
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
        inputs=tuple(map(Group.parsed, arguments.inputs)),
        target=getattr(arguments, "target", None),
        preparation=preparation,
        image_size=arguments.image_size,
        gray=arguments.gray,
        max_bytes=arguments.max_bytes,
    )


def _batch(arguments: Namespace, model: Model, source: Source) -> int:
    """The batch size: what is asked for, or the one that an exported program needs."""
    if model.batch is None:
        return getattr(arguments, "batch", 256)
    if len(source) % model.batch:
        raise ValueError(
            f"`{arguments.model}` takes {model.batch} rows at a time, and {len(source)} rows are "
            "not a multiple; export it with `dynamic_shapes` for the batch, or give other data."
        )
    return model.batch


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
    given = {name: value for name in _PLAIN if (value := getattr(arguments, name)) is not None}
    if arguments.batch_dim is not None:
        given["batch_dim"] = None if arguments.batch_dim == "none" else arguments.batch_dim
    if (noise := noise_of(arguments)) is not None:
        given["noise"] = noise
    if arguments.rate is not None:
        given["rate"] = arguments.rate[0] if len(arguments.rate) == 1 else arguments.rate
    if arguments.placement is not None:
        text = arguments.placement
        given["placement"] = as_placement(text if text in PLACEMENTS else text.split(","))
    sure = Uncertain(model.module)
    if arguments.settings is not None:
        sure = read_settings(arguments.settings, model.module)
    method = getattr(arguments, "method", None)
    if method is not None:
        check_method(method)
        sure.method = method
    sure.setup = sure.setup.with_(**given)
    return sure


def check_unsure(sure: Uncertain) -> None:
    """An error in the words of the command line if "auto" will have nothing to choose by."""
    setup = sure.setup
    known = setup.noise is not None or setup.rate is not None or setup.is_fitted
    if sure.method == "auto" and not known and setup.placement.kind != "existing":
        raise ValueError(
            "There is nothing to be unsure about: give the sensor's noise (`--noise-std`), a "
            "dropout rate (`--rate`), or what `howsure fit` found (`--settings`)."
        )


def example_of(arguments: Namespace, model: Model) -> Inputs:
    """Inputs to try the model with: the first rows of the data, or random ones of a shape."""
    if (arguments.data is None) == (not arguments.shape):
        raise ValueError("Give either DATA or `--shape`, such as `--shape 3,32,32`.")
    count = model.batch or 2
    if arguments.data is not None:
        source = data_of(arguments, model).source
        x = source.rows(0, min(count, len(source)))
    else:
        x = _random(arguments.shape, count, model.dtype)
    check_runs(model, x)
    return x


def _random(shapes: Sequence[str], count: int, dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for text in shapes:
        name, _, sizes = text.rpartition("=")
        try:
            shape = [int(size) for size in sizes.split(",")]
            found[name] = torch.rand(count, *shape, generator=generator, dtype=dtype)
        except (ValueError, RuntimeError):
            raise ValueError(f"`--shape {text}` is not a shape, such as 3,32,32.") from None
    if len(found) < len(shapes) or (len(found) > 1 and "" in found):
        raise ValueError("Several `--shape` need names of arguments: `--shape image=3,32,32`.")
    only = found.get("")
    return found if only is None else only


def _output(sure: Uncertain, x: object) -> Tensor | None:
    """The part of the model's output that counts, if it is one tensor."""
    with torch.no_grad():
        tensors = TensorTree(sure.setup.run(x)).tensors
    return tensors[0] if len(tensors) == 1 else None


def shows_progress(arguments: Namespace) -> bool:
    """Whether there is somebody who looks at a bar."""
    return not arguments.quiet and sys.stderr.isatty()
