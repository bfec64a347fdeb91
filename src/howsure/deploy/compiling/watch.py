"""Whether a model is untouched: a cheap look that suffices, before its contents are compared.

A walk through the contents has met every object that can change. If each of them still has the
same parts, by identity, and every tensor and array the same bits in the same memory, then the
contents are the same. The parts are held, so that no address is used twice. If not, the contents
may still be the same, and must be compared.

What is looked at in each kind of object is what `howsure.values.contents` reads of it.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from howsure.values.bits import bits_of, same_bits
from howsure.values.contents import (
    Snapshot,
    Walk,
    code_of,
    is_empty_table,
    is_entered,
    is_own_module,
    same,
    slots_of,
)

# Of these kinds themselves: a subclass may iterate in its own way.
_TABLES = (dict, OrderedDict, defaultdict)
_ROWS = (list, deque, set)
# What has no parts, or always the same.
_FIXED = (
    tuple,
    frozenset,
    type,
    types.MethodType,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
# What changes without a trace that would be found sooner than by comparing contents.
_UNSEEN = (torch.Generator, np.void, Mapping, list, deque, set)
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__dict__")
# Parts that are no slots and in no `__dict__`, by kind; all kinds have a method that sets them.
_OTHER_PARTS = {
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}
# Bytes up to which tensors are compared all at once: to call `torch.equal` takes longer.
_SMALL = 2**12
_MISSING = object()
_layout = attrgetter("dtype", "device", "shape")


def watch_over(walk: Walk, snapshot: Snapshot) -> Watch | None:
    """A watch over all that a walk has met; `None` if some of it cannot be watched."""
    try:
        return Watch(walk, snapshot)
    except _CannotBeWatchedError:
        return None


class _CannotBeWatchedError(TypeError):
    pass


class Watch:
    """All objects that a walk has met, and the parts that they had."""

    def __init__(self, walk: Walk, snapshot: Snapshot) -> None:
        self.objects: list[object] = []
        self.tables: list[Mapping[Any, object]] = []
        self.rows: list[Iterable[object]] = []
        self.empty: list[object] = []
        self.attributes: list[tuple[object, str]] = []
        self.cells: list[types.CellType] = []
        self.globals: list[tuple[Mapping[str, object], str]] = []
        for _, thing in walk.met.values():
            self._add(thing)
        # Views of values show what a table has when they are iterated over.
        self.values = [table.values() for table in self.tables]
        self.known = [list(found) for found in self._found()]
        self.sizes = self._sizes()
        self.numbers = _Numbers(walk, snapshot)

    def holds(self) -> bool:
        """Whether nothing was touched; if it was, it may have been put back."""
        try:
            found = zip(self._found(), self.known, strict=True)
            return (
                self._sizes() == self.sizes
                and not any(self.empty)
                and all(all(map(is_, now, was)) for now, was in found)
                and self.numbers.hold()
            )
        except RuntimeError:  # A table changes while it is looked at, or memory is gone.
            return False

    def _found(self) -> Iterator[Iterable[object]]:
        """All parts; as many as the sizes say."""
        yield map(type, self.objects)
        yield chain.from_iterable((*self.tables, *self.values, *self.rows))
        yield (getattr(thing, name, _MISSING) for thing, name in self.attributes)
        yield map(_content, self.cells)
        yield (table.get(name) for table, name in self.globals)

    def _sizes(self) -> list[int]:
        return [*map(len, self.values), *map(len, self.rows)]  # pyright: ignore[reportArgumentType]

    def _add(self, thing: Any) -> None:
        if type(thing) in _TABLES:
            self.tables.append(thing)
        elif type(thing) in _ROWS:
            self.rows.append(thing)
        elif isinstance(thing, types.FunctionType):
            self._add_function(thing)
        elif isinstance(thing, type) and is_entered(thing):
            self.tables.append(vars(thing))
            self.attributes.append((thing, "__bases__"))
        elif isinstance(thing, _UNSEEN) or _shows_no_bits(thing):
            raise _CannotBeWatchedError
        elif isinstance(thing, Tensor | np.ndarray):
            self.objects.append(thing)
        elif not isinstance(thing, _FIXED) and is_entered(thing):
            self._add_object(thing)

    def _add_function(self, function: types.FunctionType) -> None:
        if not is_entered(function):
            return
        self.attributes.extend((function, name) for name in _OF_FUNCTIONS)
        self.tables.append(function.__dict__)
        self.cells.extend(function.__closure__ or ())
        own, names = function.__globals__, code_of(function.__code__)[0]
        modules = [own[name] for name in names if is_own_module(own.get(name))]
        for table in (own, *map(vars, modules)):
            self.globals.extend((table, name) for name in names)

    def _add_object(self, thing: object) -> None:
        self.objects.append(thing)
        others = (names for kind, names in _OTHER_PARTS.items() if isinstance(thing, kind))
        names = (*slots_of(type(thing)), *chain.from_iterable(others), "__dict__")
        self.attributes.extend((thing, name) for name in names)
        own = getattr(thing, "__dict__", {})
        self.tables.append(own)
        parts = (*own.values(), *(getattr(thing, name, None) for name in names[:-1]))
        self.empty.extend(part for part in parts if is_empty_table(part))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty.
        return _MISSING


class _Numbers:
    """The memory of all tensors and arrays, and copies of what it held."""

    def __init__(self, walk: Walk, snapshot: Snapshot) -> None:
        pairs = list(zip(walk.leaves, snapshot.leaves, strict=True))
        self.arrays = [pair for pair in pairs if isinstance(pair[0], np.ndarray)]
        tensors = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
        self.tensors: list[Tensor] = [tensor for tensor, _ in tensors]
        self.layouts = self._layouts()
        # An alias keeps the memory: a tensor that is moved elsewhere has another address.
        bits = [bits_of(*pair) for pair in tensors]
        self.large = [pair for pair in bits if not _is_small(pair[0])]
        self.small = _joined([pair for pair in bits if _is_small(pair[0])])

    def hold(self) -> bool:
        """Whether all are where they were, with the same bits."""
        return (
            self._layouts() == self.layouts
            and all(torch.equal(torch.cat(parts), copy) for parts, copy in self.small)
            and all(same_bits(part, copy) for part, copy in self.large)
            and all(same(copy, array) for array, copy in self.arrays)
        )

    def _layouts(self) -> list[list[object]]:
        reads = (Tensor.data_ptr, Tensor.stride, Tensor.is_neg, _layout)
        return [list(map(read, self.tensors)) for read in reads]


def _shows_no_bits(thing: object) -> bool:
    """Whether a tensor or array is no plain memory, or is read in another form than it has."""
    if isinstance(thing, np.ndarray):
        return thing.dtype == np.dtype(object)
    if not isinstance(thing, Tensor):
        return False
    strided = type(thing) in (Tensor, nn.Parameter) and thing.layout == torch.strided
    return (
        not strided or thing.is_meta or thing.is_quantized or thing.is_complex() or thing.is_neg()
    )


def _is_small(bits: Tensor) -> bool:
    return bits.is_contiguous() and bits.numel() * bits.element_size() <= _SMALL


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[list[Tensor], Tensor]]:
    """Tensors of one dtype and device, and copies of all of them as one."""
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for part, copy in pairs:
        own = groups.setdefault((part.dtype, part.device), [])
        own.append((part.reshape(-1), copy.reshape(-1)))
    columns = (zip(*group, strict=True) for group in groups.values())
    return [(list(parts), torch.cat(copies)) for parts, copies in columns]
