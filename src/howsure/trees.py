"""Nested structures of tensors: maps over them, arguments and outputs of a model, traces."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsure.private_torch import disable_current_modes, functorch, pytree, unwrap_compiled


def map_leaves(function: Callable[..., object], tree: object, *others: object) -> Any:
    """The same structure with `function` applied to every leaf, and to those of others like it."""
    if isinstance(tree, Tensor):  # By far the most usual, and walking a tree takes its time.
        return function(tree, *others)

    def visit(*nodes: Any) -> object:
        """Descends into what torch takes for a leaf: other mappings, and dataclasses."""
        node = nodes[0]
        if isinstance(node, Mapping) and not dataclasses.is_dataclass(node):
            items = {key: map_leaves(function, *(other[key] for other in nodes)) for key in node}
            return rebuild_mapping(node, items)
        if isinstance(node, tuple) and hasattr(node, "_fields"):  # torch 2.6: a `PackedSequence`
            return type(node)(
                *(map_leaves(function, *column) for column in zip(*nodes, strict=True))
            )
        if not dataclasses.is_dataclass(node) or isinstance(node, type):
            return function(*nodes)
        names = [field.name for field in dataclasses.fields(node) if field.init]
        changes = {
            name: map_leaves(function, *(getattr(other, name) for other in nodes)) for name in names
        }
        return dataclasses.replace(node, **changes)

    return pytree.tree_map(visit, tree, *others)


def rebuild_mapping(mapping: Mapping[object, object], items: dict[object, object]) -> object:
    """The items in a mapping of a class that torch does not know; a dict if that takes none."""
    constructor: Any = type(mapping)
    try:
        return constructor(items)
    except TypeError:
        return items


def as_call(
    x: object, model: Callable[..., object] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `model(...)` for an input `x`.

    A plain tuple is the positional arguments, and anything else the one argument. A dict whose keys
    are names of the model's parameters is its keyword arguments, else the one argument.
    """
    if type(x) is tuple:
        return x, {}
    if not isinstance(x, dict) or not all(isinstance(key, str) for key in x):
        return (x,), {}
    is_call = model is None or _takes_keywords(unwrap_compiled(model), frozenset(x))
    return ((), x) if is_call else ((x,), {})


def _takes_keywords(model: Callable[..., object], names: frozenset[str]) -> bool:
    function = type(model).forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # A builtin, or a scripted module, does not say.
        return True
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return True
    return names <= {parameter.name for parameter in parameters}


def select_output(output: Any, choice: Any) -> Any:
    """A part of a model's output: by key, index, attribute or function; `None` is all of it."""
    if choice is None:
        return output
    if callable(choice):
        return choice(output)
    try:
        if isinstance(choice, str) and not isinstance(output, Mapping):
            return getattr(output, choice)
        return output[choice]
    except (AttributeError, IndexError, KeyError, TypeError):
        keys = f" with the keys {list(output)}" if isinstance(output, Mapping) else ""
        raise ValueError(
            f"`output={choice!r}` is no part of what the model returns, a "
            f"{type(output).__name__}{keys}; give a key, an index, an attribute or a function."
        ) from None


def clone_tensors(x: object) -> Any:
    """The input with copies of its tensors: a model may write into those."""
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, x)


def tensors_of(x: object) -> list[Tensor]:
    """All tensors of a structure, in order."""
    if isinstance(x, Tensor):
        return [x]
    tensors: list[Tensor] = []
    map_leaves(lambda leaf: tensors.append(leaf) if isinstance(leaf, Tensor) else None, x)
    return tensors


def floats_of(x: object) -> list[Tensor]:
    """All floating-point tensors of a structure, in order."""
    return [tensor for tensor in tensors_of(x) if tensor.dtype.is_floating_point]


def shape_key(x: object, without: int | None = None) -> object:
    """Shapes, types and devices of the tensors of an input, and what in it is no tensor.

    `without` names a dimension whose length does not matter.
    """
    if isinstance(x, Tensor) and without is None:
        return x.shape, x.dtype, x.device

    def describe(item: object) -> object:
        if not isinstance(item, Tensor):
            return repr(item)
        shape = list(item.shape)
        if without is not None and item.dim() > without:
            del shape[without]
        return tuple(shape), str(item.dtype), str(item.device)

    return str(map_leaves(describe, x))


def batch_size(x: object, dim: int = 0) -> int:
    """The length of a dimension of the first tensor of an input, tokens and indices included."""
    tensors = tensors_of(x)
    if not tensors or tensors[0].dim() <= dim:
        raise ValueError(no_batch_axis(dim))
    return tensors[0].shape[dim]


def no_batch_axis(axis: int) -> str:
    """What to say about an input without rows."""
    return (
        f"The input has no batch axis {axis}; give inputs of shape (batch, ...), or say with "
        "`batch_dim=None` that a call is one input."
    )


class TensorTree:
    """A nested structure, its floating-point tensors, and how to put others in their place.

    Attributes:
        tensors: The floating-point tensors, in order.
        template: The structure with a `Slot` for each of them.
        is_tensor: Whether the structure is one floating-point tensor and nothing else.
    """

    def __init__(self, tree: object) -> None:
        self.is_tensor = isinstance(tree, Tensor) and tree.is_floating_point()
        self.tensors: list[Tensor] = [tree] if isinstance(tree, Tensor) and self.is_tensor else []
        self.template: Any = Slot(0) if self.is_tensor else map_leaves(self._take, tree)

    def _take(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        self.tensors.append(leaf)
        return Slot(len(self.tensors) - 1)

    @functools.cached_property
    def has_other_tensors(self) -> bool:
        """Whether there are tensors besides: indices, masks."""
        return not self.is_tensor and bool(tensors_of(self.template))

    def unflatten(self, values: Sequence[object]) -> Any:
        """The structure with `values` in place of its floating-point tensors."""
        if self.is_tensor:
            return values[0]
        return fill_slots(self.template, values)

    def unflatten_variance(self, variances: Sequence[object]) -> Any:
        """The same for variances: what is no floating-point tensor, such as an index, has none.

        That of complex numbers is not known: NaN.
        """
        if self.is_tensor:
            return variances[0]

        def variance(leaf: object) -> object:
            if isinstance(leaf, Tensor) and leaf.is_complex():
                return torch.full_like(leaf.real, torch.nan)
            return variances[leaf.index] if isinstance(leaf, Slot) else 0.0

        return map_leaves(variance, self.template)


class Slot:
    """Marks where a tensor was."""

    def __init__(self, index: int) -> None:
        self.index = index


def fill_slots(template: object, values: Sequence[object]) -> Any:
    """The structure with values in place of its slots."""
    return map_leaves(lambda leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf, template)


def has_values(tensor: Tensor) -> bool:
    """Whether the values can be looked at: not inside `vmap`, `torch.export` or `torch.compile`."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not is_tracing()
        and not functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_tracing() -> bool:
    """Whether operations are being written down: `torch.export`, `torch.compile`, `make_fx`."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def outside_tracing() -> AbstractContextManager[object]:
    """Operations on constants are done at once, and a trace sees what comes out."""
    return disable_current_modes()


def brief(value: object) -> str:
    """A value in a few words, for a `repr` of one line: never a tensor in full.

    A number has three digits, a tensor is described by its shape and range, also in tuples.
    """
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return number_range([value])
        shape = " x ".join(map(str, value.shape))
        return f"[{shape} values, {number_range([value])}]" if value.numel() else f"[{shape}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))})"
    return f"{value:.3g}" if isinstance(value, float) else repr(value)


def number_range(tensors: Sequence[Tensor]) -> str:
    """The smallest and the largest element: `0.02 to 0.11`, or one number if they agree."""
    filled = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not filled or not all(map(has_values, filled)):
        return "unknown"
    low = f"{min(float(tensor.min()) for tensor in filled):.3g}"
    high = f"{max(float(tensor.max()) for tensor in filled):.3g}"
    return low if low == high else f"{low} to {high}"
