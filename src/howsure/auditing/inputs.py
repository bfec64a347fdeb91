"""Inputs: as they are given to the model, and for an audit from a loader, as one batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.prediction import as_args
from howsure.trees import batch_size, map_leaves


def as_input(
    model: object, args: tuple[object, ...], named: Mapping[str, object], noise_var: object = None
) -> object:
    """The input in one piece, from arguments that were given as to the model itself."""
    if args and named:
        raise TypeError("Give all inputs by position or all by keyword.")
    if not args and not named:
        raise TypeError("There is no input; give the inputs as to the model itself.")
    if noise_var is None and len(args) > 1 and type(args[-1]) in (int, float):
        raise TypeError(
            f"Is {args[-1]!r} an input or a variance? Give the variance of the noise as "
            f"`noise_var={args[-1]!r}`, and inputs that are numbers by keyword."
        )
    if noise_var is None and len(args) == 2 and _may_be_variance(model, *args):
        raise TypeError(
            "Is the second tensor an input or a variance? The model runs without it. Give the "
            "variance of the noise as `noise_var=...`, and inputs by keyword."
        )
    return dict(named) if named else args[0] if len(args) == 1 else args


def _may_be_variance(model: object, x: object, other: object) -> bool:
    """Whether a second input fits the first as its variance, and the model needs no second one.

    In version 0.1 the second argument was the variance.
    """
    if not isinstance(x, Tensor) or not isinstance(other, Tensor) or bool((other < 0).any()):
        return False
    try:
        inspect.signature(getattr(model, "forward", model)).bind(x)  # pyright: ignore[reportArgumentType]
        return torch.broadcast_shapes(x.shape, other.shape) == x.shape
    except (TypeError, ValueError, RuntimeError):
        return False


def gathered(data: object, most: int) -> object:
    """At most `most` inputs as one batch, in the form that the model takes.

    `data` is a tensor, a dict of keyword arguments, or a loader of batches: inputs alone, or
    (inputs, targets), of which the targets are left aside.
    """
    if not isinstance(most, int) or most < 1:
        raise ValueError(f"`inputs` must be a whole number of at least 1, not {most!r}.")
    if not isinstance(data, Iterable):
        raise TypeError(
            f"`data` is a {type(data).__name__}; give a tensor of inputs, or a loader of batches."
        )
    batches: list[object] = []
    for batch in _batches(data):
        batches.append(first_rows(batch, most - sum(map(batch_size, batches))))
        if sum(map(batch_size, batches)) >= most:
            break
    if not batches or batch_size(batches[0]) == 0:
        raise ValueError("There are no inputs to audit with; the data is empty.")
    return batches[0] if len(batches) == 1 else _joined(batches)


def _batches(data: Iterable[object]) -> Iterator[object]:
    if isinstance(data, (Tensor, Mapping)):
        yield data
        return
    for batch in data:
        args = as_args(batch)
        yield args[0] if len(args) == 1 else args


def first_rows(x: object, count: int) -> object:
    """The first `count` inputs of a batch."""
    return rows_of(x, batch_size(x), slice(count))


def rows_of(x: object, batch: int, some: slice) -> object:
    """Some inputs of a batch, or their variances; tensors without a row for each are shared."""
    return map_leaves(lambda leaf: leaf[some] if _has_rows(leaf, batch) else leaf, x)


def _has_rows(leaf: object, batch: int) -> bool:
    """Whether a tensor has one row for each input; others are shared by all."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


def _joined(batches: Sequence[object]) -> object:
    sizes = [batch_size(batch) for batch in batches]

    def leaf(*parts: Any) -> object:
        own = all(_has_rows(part, size) for part, size in zip(parts, sizes, strict=True))
        return torch.cat(parts) if own else parts[0]

    try:
        return map_leaves(leaf, *batches)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            "The batches of the data do not fit together. Several inputs of one call go into a "
            "tuple inside a batch: `audit(model, [((x, h), targets)])`."
        ) from error


def full_variance(variance: Any, x: Any) -> object:
    """The variances broadcast to their inputs, so that rows can be taken; `None` for no noise."""
    if variance is None or isinstance(x, Tensor):
        return None if variance is None else variance.expand(x.shape)
    if isinstance(x, Mapping):
        return {key: full_variance(var, x[key]) for key, var in variance.items()}
    parts = [full_variance(var, item) for var, item in zip(variance, x, strict=True)]
    constructor: Any = type(x)
    return constructor(*parts) if hasattr(x, "_fields") else constructor(parts)


def any_noise(variance: object) -> bool:
    """Whether any element of any input has a variance above 0."""
    return any(bool((leaf > 0).any()) for leaf in pytree.tree_leaves(variance) if leaf is not None)
