"""Held-out data: taken from a loader, with warnings for what would spoil a search."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from howsure.arrays import BATCH, as_tensors, batched, batches
from howsure.errors import HowsureWarning
from howsure.fit.inputs import are_copies
from howsure.fit.suspicious_targets import describe_suspicions
from howsure.isolation import random_state_kept
from howsure.noise import is_correlated
from howsure.setup import Setup
from howsure.trees import TensorTree, clone_tensors, tensors_of

# Numbers of an input, an output and a target that are looked at.
_COMPARED = 64


def pairs_of(
    loader: Iterable[object], kind: str = "held-out", model: object = None
) -> Iterator[tuple[object, Tensor]]:
    """The batches (inputs, targets) of a loader; an error if there are none.

    Inputs that are arrays become tensors in the type of the `model`, if one is given. A data set,
    which yields single rows, is taken in batches.
    """
    empty = True
    for batch in batched(loader):
        empty = False
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise TypeError(
                f"A {kind} batch must be a pair (inputs, targets); several inputs go into a "
                f"tuple or a dict. This one is a {_described(batch)}."
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
        yield inputs, torch.as_tensor(targets)
    if empty:
        raise ValueError("The loader is empty; there is nothing to fit on.")


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
    if len(x) != len(y):
        raise ValueError(f"There are {len(x)} inputs and {len(y)} targets; give one for each.")
    # Numbers of numpy and pandas are twice as precise as most models.
    weight = next((p for p in _parameters(model) if p.is_floating_point()), torch.empty(0))
    x, y = (part.to(weight.dtype) if part.is_floating_point() else part for part in (x, y))
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]


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


def _parameters(model: object) -> Iterable[Tensor]:
    return model.parameters() if isinstance(model, nn.Module) else ()


def rows_in_front(target: Tensor, axis: int) -> Tensor:
    """Targets with one row for each input, where the model's output has them on another axis."""
    return target.movedim(axis, 0) if target.dim() > axis else target


def _described(batch: object) -> str:
    """What a batch is, and what to do if it is a dict."""
    if not isinstance(batch, Mapping):
        return type(batch).__name__
    return (
        f"{type(batch).__name__} with {list(batch)}: name the targets, `fit(loader, targets=...)`, "
        "or both parts, `hs.batches(loader, inputs=..., targets=...)`"
    )


def warn_if_training_data(
    setup: Setup, loader: object, pairs: list[tuple[object, Tensor]], training_data: object
) -> None:
    """Warns if the held-out data, read as `pairs`, is the training data or a copy of it."""
    held_out, training = _data_set(loader), _data_set(training_data)
    marked = getattr(held_out, "train", None) is True
    known = training is not None and _overlap(held_out, training)
    if marked or known or are_copies(training_data, pairs, setup):
        warnings.warn(
            "The held-out data shares inputs with the training data. Errors on training data are "
            "too small, so the rate will be, too; fit on data that the model has not seen.",
            HowsureWarning,
            stacklevel=5,
        )


def _data_set(loader: object) -> object:
    loader = loader.loader if isinstance(loader, batches) else loader
    return loader.dataset if isinstance(loader, DataLoader) else loader


def _overlap(one: object, two: object) -> bool:
    if one is two:
        return True
    first, second = getattr(one, "dataset", one), getattr(two, "dataset", two)
    if first is not second or first is None:
        return False
    left = getattr(one, "indices", None)
    right = getattr(two, "indices", None)
    if left is None or right is None:
        return True
    return not set(map(int, left)).isdisjoint(map(int, right))


def warn_if_clean(setup: Setup, pairs: list[tuple[object, Tensor]]) -> None:
    """Warns if images look cleaner than the noise that the setup assumes.

    The estimate is too large where there is texture, so one below half of the assumed std means
    that the noise is not there. Differences of pixels hide noise that pixels have in common.
    """
    x = pairs[0][0]
    if is_correlated(setup.noise):
        return
    if setup.noise is None or not isinstance(x, Tensor) or x.dim() != 4 or min(x.shape[-2:]) < 8:
        return
    assumed = float(setup.variance(x).mean().sqrt())
    found = _noise_std(x[:8].float())
    if found < 0.5 * assumed:
        warnings.warn(
            f"The held-out inputs look cleaner (std about {found:.2g}) than the noise that is "
            f"assumed (std {assumed:.2g}), so what is fitted will not suit noisy inputs; use "
            '`inputs="clean"` to add the noise to them.',
            HowsureWarning,
            stacklevel=5,
        )


def warn_of_targets(setup: Setup, pairs: list[tuple[object, Tensor]]) -> None:
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
            parts.append(rows.reshape(len(rows), -1)[:, :_COMPARED].to(tensors[0].device))
        if any(len(t) != len(targets[-1]) for t in (inputs[-1], outputs[-1])):
            return
    if len({t.shape[1:] for t in inputs}) > 1:
        return
    for sentence in describe_suspicions(*map(torch.cat, (inputs, outputs, targets))):
        warnings.warn(sentence, HowsureWarning, stacklevel=5)


def _noise_std(images: Tensor) -> float:  # (batch, channels, height, width)
    """An upper estimate of the noise: median absolute second difference along both axes.

    White noise of std s gives differences of std 6 s (Immerkaer 1996); texture adds to them.
    """
    rows = images[..., 2:, :] - 2 * images[..., 1:-1, :] + images[..., :-2, :]
    both = rows[..., 2:] - 2 * rows[..., 1:-1] + rows[..., :-2]
    return float(1.4826 * both.abs().median() / 6)
