"""The data that `fit` is given: held-out pairs and training inputs; warnings for what spoils it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from howsure.arrays import BATCH, as_tensors, batched, batches, check_tensor
from howsure.errors import warn
from howsure.fit.options import FitOptions
from howsure.fit.suspicious_targets import describe_suspicions
from howsure.isolation import random_state_kept
from howsure.noise.inputs import is_correlated, sample_of
from howsure.probe import probe_model
from howsure.problem import Sources
from howsure.setup import Setup
from howsure.trees import TensorTree, clone_tensors, map_leaves, shape_key, tensors_of

Batches = Sequence[tuple[Any, Tensor]]
# Numbers of an input, an output and a target that are looked at.
_COMPARED = 64
# Held-out rows that are also training rows, as a share, from which they are not held out.
_SHARED = 0.2
# Training data whose rows can be compared at little cost.
_IN_MEMORY = (Tensor, np.ndarray, list, tuple, TensorDataset)
# The share of the usual number of held-out inputs from which a fit is rough and not an error.
_LEAST_SHARE = 0.4
# Numbers of held-out inputs that are examined; few weights need no more than some hundred inputs.
_NUMBERS, _LEAST_INPUTS = 2**24, 384
# Random numbers that an input should see at least, and blocks of points at the most.
_ELEMENTS, _MOST_BLOCKS = 2**10, 8


def pairs_of(
    loader: Iterable[object], kind: str = "held-out", model: object = None
) -> Iterator[tuple[object, Tensor]]:
    """The batches (inputs, targets) of a loader; an error if there are none.

    Inputs that are arrays become tensors in the type of the `model`, if one is given. A data set,
    which yields single rows, is taken in batches.
    """
    empty = True
    for batch in batched(loader):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            remedy = (
                f" with {list(batch)}: name the targets, `fit(loader, targets=...)`, or both "
                "parts, `hs.batches(loader, inputs=..., targets=...)`"
                if isinstance(batch, Mapping)
                else ""
            )
            raise TypeError(
                f"A {kind} batch must be a pair (inputs, targets); several inputs go into a "
                f"tuple or a dict. This one is a {type(batch).__name__}{remedy}."
            )
        inputs, targets = batch
        if isinstance(inputs, list):
            inputs = tuple(inputs)
        if isinstance(targets, (tuple, list, Mapping)) and any(
            isinstance(each, Tensor) and each.dim()
            for each in (targets.values() if isinstance(targets, Mapping) else targets)
        ):
            raise TypeError(
                f"The targets of a {kind} batch are a {type(targets).__name__} of tensors; give "
                "those of one output, and choose it with `Uncertain(..., output=...)`."
            )
        if isinstance(model, nn.Module):
            inputs = as_tensors(inputs, model)
        targets = _as_targets(targets, kind)
        if len(targets):
            empty = False
            yield inputs, targets
    if empty:
        raise ValueError("The loader is empty; there is nothing to fit on.")


def _as_targets(targets: object, kind: str) -> Tensor:
    """Targets as a tensor of real numbers, one row for each input."""
    try:
        tensor = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"The targets of a {kind} batch are a {type(targets).__name__} that is no array of "
            "numbers; give a tensor or an array with one row for each input."
        ) from None
    check_tensor(tensor)
    if tensor.is_complex() or not tensor.dim():
        what = "complex" if tensor.is_complex() else "a single number"
        raise TypeError(
            f"The targets of a {kind} batch are {what}; give real numbers, one row for each input."
        )
    return tensor.long() if tensor.dtype == torch.bool else tensor


def held_out_batches(data: Any, targets: Any, model: object) -> Iterable[object]:
    """Batches of (inputs, targets) from the ways in which people give held-out data.

    `data` is a loader, a data set, a pair (X, y), or X with `targets=y`; or its batches are dicts,
    and `targets` is a key of them, or a function.
    """
    if isinstance(targets, str):
        return batches(data, lambda batch: _inputs_beside(batch, targets, model), targets)
    if callable(targets) and not hasattr(targets, "__array__"):
        return batches(data, lambda batch: batch, targets)
    if targets is None:
        is_pair = isinstance(data, (tuple, list)) and len(data) == 2
        if not is_pair or not all(hasattr(part, "__array__") for part in data):
            return data
        data, targets = data
    arrays = (part if isinstance(part, Tensor) else np.array(part) for part in (data, targets))
    x, y = map(torch.as_tensor, arrays)
    for part in (x, y):
        check_tensor(part)
    if not x.dim() or not y.dim():
        raise TypeError("Inputs or targets are a single number; give one row for each input.")
    if len(x) != len(y):
        raise ValueError(f"There are {len(x)} inputs and {len(y)} targets; give one for each.")
    # Numbers of numpy and pandas are twice as precise as most models.
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    weight = next((p for p in parameters if p.is_floating_point()), torch.empty(0))
    x, y = (part.to(weight.dtype) if part.is_floating_point() else part for part in (x, y))
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True)) if len(x) else []


def _inputs_beside(batch: object, targets: str, model: object) -> object:
    """What of a dict the model takes: the entries that it has parameters for, or the only one."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"`targets={targets!r}` is a key, but a batch is a {type(batch).__name__}, not a dict."
        )
    others = {key: batch[key] for key in batch if key != targets}
    function = type(model).forward if isinstance(model, nn.Module) else model
    assert callable(function)
    parameters = inspect.signature(function).parameters
    taken = {key: item for key, item in others.items() if key in parameters}
    first = next((name for name in parameters if name != "self"), None)
    if set(taken) == {first} or (not taken and len(others) == 1):
        return next(iter((taken or others).values()))  # by position, as `sure(x)` gives it
    return taken or others


def read_held_out(setup: Setup, loader: Iterable[object], options: FitOptions) -> Batches:
    """The held-out data as it is used; a warning for what would spoil a fit."""
    pairs = list(pairs_of(loader, model=setup.model))
    _warn_if_training_data(setup, loader, pairs, options.training_data)
    for x, _ in pairs:
        check_inputs(setup, x)
    if setup.task == "regression":
        _warn_of_targets(setup, some_of(pairs))
    if options.inputs == "clean":
        generator = torch.Generator().manual_seed(setup.seed)
        axis = setup.batch_dim
        return [(sample_of(setup.noise, x, generator, batch_dim=axis), y) for x, y in pairs]
    _warn_if_clean(setup, pairs)
    return pairs


def check_inputs(setup: Setup, x: object) -> None:
    """An error for inputs that are not finite, unless the model can deal with them."""
    floats = [tensor for tensor in tensors_of(x) if tensor.is_floating_point()]
    if not all(bool(tensor.isfinite().all()) for tensor in floats):
        with torch.no_grad():
            predicted = TensorTree(setup.run(clone_tensors(x))).tensors
        check_finite(predicted, "predictions of held-out inputs")


def check_finite(tensors: Iterable[Tensor], what: str) -> None:
    """An error if a number is NaN or infinite."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise ValueError(f"Some {what} are NaN or infinite; leave them out.")


def check_count(batches: Batches, fewest: int, what: str) -> None:
    """A warning for fewer held-out inputs than that, an error for less than 40 % of them."""
    count = sum(len(target) for _, target in batches)
    if _LEAST_SHARE * fewest <= count < fewest:
        warn(f"There are {count} held-out inputs; a {what} from fewer than {fewest} is rough.")
    elif count < fewest:
        raise ValueError(
            f"There are {count} held-out inputs, and a {what} needs at least "
            f"{math.ceil(_LEAST_SHARE * fewest)}, better {fewest} or more; give "
            'more, or fit the dropout rate: `model="dropout"` (`--model-part dropout`).'
        )


def some_of(batches: Batches) -> Batches:
    """As many held-out inputs as the weights need: the first of every batch, of large inputs."""
    numbers = sum(tensor.numel() for x, _ in batches for tensor in tensors_of(x))
    count = sum(len(target) for _, target in batches)
    most = max(_LEAST_INPUTS, _NUMBERS * count // max(1, numbers))
    x = batches[0][0]
    if count <= most or not isinstance(x, Tensor):
        return batches
    share = [-(-len(y) * most // count) for _, y in batches]
    return [(x[:k], y[:k]) for k, (x, y) in zip(share, batches, strict=True)]


def points_for(setup: Setup, x: object, watching: Setup | None = None) -> int:
    """One block for large networks; more where inner products average over few summands.

    A setup that is `watching` multipliers has been probed already.
    """
    sources = Sources.of(setup, x, (watching or setup).cached(probe_model, x).layout)
    blocks = max(1, min(_MOST_BLOCKS, _ELEMENTS // max(1, sources.elements)))
    return blocks * sources.design.points


def rows_in_front(target: Tensor, axis: int) -> Tensor:
    """Targets with one row for each input, where the model's output has them on another axis."""
    return target.movedim(axis, 0) if target.dim() > axis else target


def repeatable(options: dict[str, object]) -> dict[str, object]:
    """The options of a fit, with training data that can be gone through more than once."""
    return {
        name: list(given) if name.startswith("train") and isinstance(given, Iterator) else given
        for name, given in options.items()
    }


def _batches_of_inputs(inputs: Any, setup: Setup) -> Iterator[object]:
    """Batches of inputs from a tensor, an array, a data set or a loader, of pairs the inputs.

    Several inputs come in batches ((x, h),). Arrays become tensors in the type of the model.
    """
    if isinstance(inputs, Mapping):
        raise TypeError(
            "`train_inputs` is a dict; give batches of inputs as the model takes them: "
            "`train_inputs=[(inputs,)]`."
        )
    is_array = isinstance(inputs, Tensor | np.ndarray)
    starts = range(0, len(inputs) if is_array else 0, BATCH)
    for batch in (inputs[i : i + BATCH] for i in starts) if is_array else batched(inputs):
        x: object = batch
        if isinstance(x, list | tuple) and len(x) in (1, 2):
            x = x[0]
        x = tuple(x) if isinstance(x, list) else x  # as a loader has collated it
        yield as_tensors(x, setup.model) if isinstance(setup.model, nn.Module) else x


def unseen_inputs(inputs: object, held_out: Batches, setup: Setup) -> Iterator[object]:
    """Batches of training inputs; an error where they are of another kind, or held out as well."""
    known, shared = set().union(*(_fingerprints(x) for x, _ in held_out)), set[int]()
    for x in _batches_of_inputs(inputs, setup):
        check_same_kind(x, held_out[0][0], setup.batch_dim)
        shared |= known & _fingerprints(x)
        yield x
    if len(shared) > _SHARED * len(known):
        raise ValueError(
            f"{len(shared)} of {len(known)} held-out inputs are also among the training inputs. "
            "Errors on inputs that the network was trained on are too small; fit on inputs that it "
            "has not seen."
        )


def check_same_kind(x: object, held_out: object, axis: int | None) -> None:
    """An error if training inputs have other shapes than the held-out ones."""
    shapes, wanted = shape_key(x, without=axis), shape_key(held_out, without=axis)
    if shapes != wanted:
        raise ValueError(
            f"Each training input is {shapes}, and each held-out input {wanted}; preprocess both "
            "in the same way."
        )


def _fingerprints(x: object) -> set[int]:
    """One number for the content of each row."""
    rows: list[bytes] = []

    def add(leaf: object) -> None:
        if isinstance(leaf, Tensor) and leaf.dim():
            # As bytes, since numpy does not know every type.
            flat = leaf.detach().cpu().reshape(len(leaf), -1).contiguous().view(torch.uint8)
            contents = [row.tobytes() for row in flat.numpy()]
            rows[:] = [a + b for a, b in zip(rows or [b""] * len(contents), contents, strict=False)]

    map_leaves(add, x)
    return {hash(row) for row in rows}


def _warn_if_training_data(
    setup: Setup, loader: object, pairs: Batches, training_data: object
) -> None:
    """Warns if the held-out data, read as `pairs`, is the training data or a copy of it."""
    held_out, training = _data_set(loader), _data_set(training_data)
    is_training = getattr(held_out, "train", None) is True  # as data sets of torchvision say
    if training is not None:
        is_training = is_training or _overlap(held_out, training)
    # A data set that reads files may take as long as a training epoch, and is not read for it.
    if isinstance(getattr(training, "dataset", training), _IN_MEMORY):
        known, shared = set().union(*(_fingerprints(x) for x, _ in pairs)), set[int]()
        with torch.random.fork_rng(devices=[]):  # A shuffling loader draws the caller's numbers.
            for x in _batches_of_inputs(training_data, setup):
                shared |= known & _fingerprints(x)
        is_training = is_training or len(shared) > _SHARED * len(known)
    if is_training:
        warn(
            "The held-out data shares inputs with the training data. Errors on training data are "
            "too small, so the rate will be, too; fit on data that the model has not seen."
        )


def _data_set(loader: object) -> object:
    loader = loader.loader if isinstance(loader, batches) else loader
    return loader.dataset if isinstance(loader, DataLoader) else loader


def _overlap(one: object, two: object) -> bool:
    """Whether two data sets are one, or parts of one that have rows in common."""
    if one is two:
        return True
    first, second = getattr(one, "dataset", one), getattr(two, "dataset", two)
    if first is not second or first is None:
        return False
    left, right = getattr(one, "indices", None), getattr(two, "indices", None)
    return left is None or right is None or not set(map(int, left)).isdisjoint(map(int, right))


def _warn_if_clean(setup: Setup, pairs: Batches) -> None:
    """Warns if images look cleaner than the noise that the setup assumes.

    The estimate is too large where there is texture, so one below half of the assumed std means
    that the noise is not there. Differences of pixels hide noise that pixels have in common.
    """
    x = pairs[0][0]
    if setup.noise is None or is_correlated(setup.noise):
        return
    if not isinstance(x, Tensor) or x.dim() != 4 or min(x.shape[-2:]) < 8:
        return
    assumed = float(setup.variance(x).mean().sqrt())
    # White noise of std s gives second differences along both axes of std 6 s (Immerkaer 1996).
    images = x[:8].float()
    rows = images[..., 2:, :] - 2 * images[..., 1:-1, :] + images[..., :-2, :]
    both = rows[..., 2:] - 2 * rows[..., 1:-1] + rows[..., :-2]
    std = float(1.4826 * both.abs().median() / 6)
    if std < 0.5 * assumed:
        warn(
            f"The held-out inputs look cleaner (std about {std:.2g}) than the noise that is "
            f"assumed (std {assumed:.2g}), so what is fitted will not suit noisy inputs; use "
            '`inputs="clean"` to add the noise to them.'
        )


def _warn_of_targets(setup: Setup, pairs: Batches) -> None:
    """Warns of targets that can hardly be right; see `describe_suspicions`."""
    inputs, outputs, targets = [], [], []
    axis = setup.batch_dim or 0
    for x, y in pairs:
        with torch.no_grad(), random_state_kept():
            tensors = TensorTree(setup.run(clone_tensors(x))).tensors
        floats = [t for t in tensors_of(x) if t.dim() > axis]
        if len(tensors) != 1 or tensors[0].shape != y.shape or y.dim() <= axis or not floats:
            return  # A fit says what does not fit together.
        for parts, tensor in ((inputs, floats[0]), (outputs, tensors[0]), (targets, y)):
            rows = rows_in_front(tensor, axis)
            parts.append(_some_numbers(rows.reshape(len(rows), -1)).to(tensors[0].device))
        if any(len(t) != len(targets[-1]) for t in (inputs[-1], outputs[-1])):
            return
    if len({t.shape[1:] for t in inputs}) > 1:
        return
    for sentence in describe_suspicions(*map(torch.cat, (inputs, outputs, targets))):
        warn(sentence)


def _some_numbers(rows: Tensor) -> Tensor:  # (rows, numbers)
    """At most `_COMPARED` numbers of every row, from all over it: the top of a picture is sky."""
    count = rows.shape[1]
    if count <= _COMPARED:
        return rows
    return rows[:, torch.linspace(0, count - 1, _COMPARED).long().to(rows.device)]
