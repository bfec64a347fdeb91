"""Trees of tensors and of modules; tensors without values; values that are computed when read."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_functorch_wrapped_tensor,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")


def map_leaves(function: Callable[..., object], tree: object, *others: object) -> Any:
    """The same structure with `function` applied to every leaf, and to those of others like it."""
    if isinstance(tree, Tensor):  # By far the most usual, and walking a tree takes its time.
        return function(tree, *others)

    def mapped(leaf: object, *beside: Any) -> object:
        if isinstance(leaf, Mapping) and not dataclasses.is_dataclass(leaf):
            columns = {key: [each[key] for each in (leaf, *beside)] for key in leaf}
            return like(leaf, {key: map_leaves(function, *col) for key, col in columns.items()})
        if isinstance(leaf, tuple) and hasattr(leaf, "_fields"):  # torch 2.6: a `PackedSequence`
            parts = [map_leaves(function, *col) for col in zip(leaf, *beside, strict=True)]
            return type(leaf)(*parts)
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return function(leaf, *beside)
        names = [field.name for field in dataclasses.fields(leaf) if field.init]
        columns = {name: [getattr(each, name) for each in (leaf, *beside)] for name in names}
        changes = {name: map_leaves(function, *column) for name, column in columns.items()}
        return dataclasses.replace(leaf, **changes)

    return pytree.tree_map(mapped, tree, *others)


def like(mapping: Mapping[object, object], items: dict[object, object]) -> object:
    """The items in a mapping of a class that torch does not know; a dict if that takes none."""
    constructor: Any = type(mapping)
    try:
        return constructor(items)
    except TypeError:
        return items


def as_call(x: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `model(...)` for an input `x`.

    A plain tuple is the positional arguments, a dict with string keys the keyword arguments, and
    anything else the one argument; one that is itself a dict or a tuple is given as `(argument,)`.
    """
    if type(x) is tuple:
        return x, {}
    if isinstance(x, dict) and all(isinstance(key, str) for key in x):
        return (), x
    return (x,), {}


def unwrap_compiled(model: Callable[..., object]) -> Callable[..., object]:
    """The module that `torch.compile` was given, or the model itself.

    A compiled module would be compiled anew for every shape and mode, and shows no single calls.
    """
    return getattr(model, "_orig_mod", model)


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


def shape_key(x: object, without: int | None = None) -> str:
    """Shapes and types of the tensors of an input, and everything in it that is no tensor."""

    def described(item: object) -> object:
        if not isinstance(item, Tensor):
            return repr(item)
        shape = list(item.shape)
        if without is not None and item.dim() > without:
            del shape[without]
        place = () if item.device.type == "cpu" else (str(item.device),)
        return (tuple(shape), str(item.dtype), *place)

    return str(map_leaves(described, x))


def batch_size(x: object, axis: int = 0) -> int:
    """The length of an axis of the first tensor of an input, tokens and indices included."""
    tensors = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    if not tensors or tensors[0].dim() <= axis:
        raise ValueError("The input has no batch axis; give inputs of shape (batch, ...).")
    return tensors[0].shape[axis]


class TensorTree:
    """The floating-point tensors of a nested output, and how to put others in their place."""

    def __init__(self, output: object) -> None:
        self.tensors: list[Tensor] = []
        self.template = map_leaves(self._taken, output)

    def _taken(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        self.tensors.append(leaf)
        return Slot(len(self.tensors) - 1)

    def has_other_tensors(self) -> bool:
        """Whether there are tensors besides: indices, masks."""
        found: list[bool] = []
        map_leaves(lambda leaf: found.append(isinstance(leaf, Tensor)), self.template)
        return any(found)

    def filled(self, values: Sequence[object]) -> Any:
        """The structure with `values` in place of its floating-point tensors."""
        if isinstance(self.template, Slot):
            return values[self.template.index]
        return map_leaves(
            lambda leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf, self.template
        )

    def varied(self, values: Sequence[object]) -> Any:
        """The same for variances: what is no floating-point tensor, such as an index, has none.

        That of complex numbers is not known: NaN.
        """
        if isinstance(self.template, Slot):
            return values[self.template.index]

        def varied(leaf: object) -> object:
            if isinstance(leaf, Tensor) and leaf.is_complex():
                return torch.full_like(leaf.real, torch.nan)
            return values[leaf.index] if isinstance(leaf, Slot) else 0.0

        return map_leaves(varied, self.template)


class Slot:
    """Marks where a tensor was."""

    def __init__(self, index: int) -> None:
        self.index = index


def modules_of(model: Any) -> list[nn.Module]:
    """A module and all below it, each once, in no order that matters; sooner than `modules()`."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model] if isinstance(model, nn.Module) else []
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            waiting.extend(module._modules.values())
    return list(found.values())


def weights_of(model: Any) -> list[Tensor]:
    """All parameters and buffers of a model; what is shared comes more than once."""
    tables = [table for m in modules_of(model) for table in (m._parameters, m._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def structure_hash(model: Any) -> int:
    """What may decide which layers a model calls, apart from the values of tensors.

    Classes, plain attributes such as a switch, functions, and the keys of tables of hooks.
    """
    return model_fingerprint(model)[0]


def model_fingerprint(model: Any) -> tuple[int, int]:
    """The way of a model, and where its weights are and how often they were written, as hashes."""
    way: list[Any] = []
    weights: list[Tensor | None] = []
    for module in modules_of(model):
        way.append(type(module))
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in _TABLES:
                # Most of what a module has are empty tables of hooks.
                if value:
                    way.append((name, *value))
            elif kind in _SWITCHES or isinstance(value, _SWITCHES):
                way.append((name, value))
            elif isinstance(value, dict):
                way.append((name, *value))
            elif value is not None and callable(value):
                way.append((name, id(value)))
        weights += [*module._parameters.values(), *module._buffers.values()]
    written = [
        (t.data_ptr(), 0 if t.is_inference() else t._version) for t in weights if t is not None
    ]
    return hash(tuple(way)), hash(tuple(written))


_TABLES = frozenset((dict, OrderedDict, set))
_SWITCHES = (bool, int, float, str)


def has_values(tensor: Tensor) -> bool:
    """Whether the values can be looked at: not inside `vmap`, `torch.export` or `torch.compile`."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not is_tracing()
        and not is_functorch_wrapped_tensor(tensor)
    )


def is_tracing() -> bool:
    """Whether operations are being written down: `torch.export`, `torch.compile`, `make_fx`."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def outside_tracing() -> AbstractContextManager[object]:
    """Operations on constants are done at once, and a trace sees what comes out."""
    return _disable_current_modes()


class _Later:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._value: Any = None

    def __call__(self) -> Any:
        """The value; from then on, what it was computed from is not kept."""
        if (make := self._make) is not None:  # Another thread may be as far.
            with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
                self._value = make()
            self._make = None
        return self._value

    def __getstate__(self) -> dict[str, object]:
        """What a copy has: the value."""
        return {"_make": None, "_value": self()}


def later(make: Callable[[], Any]) -> Any:
    """A value of a field that `may_be_later`, computed when it is first read from what is ours."""
    return _Later(make)


class _LaterField:
    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        value = instance.__dict__[self.name] if instance is not None else self
        return value() if type(value) is _Later else value

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__[self.name] = value


def may_be_later(*names: str) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass some of whose fields take what comes `later`, and give the values."""

    def with_fields(kind: type[T]) -> type[T]:
        for name in names:
            setattr(kind, name, _LaterField(name))
        return kind

    return with_fields


def as_is(whole: object, name: str) -> Any:
    """A field that `may_be_later`, for another such field: its value, or what computes it."""
    return whole.__dict__[name]


def changed(whole: T, **changes: object) -> T:
    """`dataclasses.replace` that computes nothing: what comes later still does."""
    new = object.__new__(type(whole))
    new.__dict__.update(whole.__dict__, **changes)
    return new
