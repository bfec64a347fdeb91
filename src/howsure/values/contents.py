"""Everything that a model computes with: tensors, attributes, hooks, and what its code refers to.

A value that was frozen elsewhere, in a compiled program or in a half-finished file of scores, is
still right if the contents are the same. Contents are compared by value: addresses and version
counters miss `weight.data.mul_(2)`, fused optimisers, and whatever else writes into memory.

Not seen: the state of objects written in C++, files, and the code of installed packages.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.values.bits import same_bits

_PLAIN = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.Size)
_NUMBERS = (float, complex, np.generic)  # `repr` tells 0 from -0, and NaN is NaN
_NAMED = (
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
# Their objects lead to all others of the process; a trainer to its data.
_NOT_ENTERED = ("logging", "threading", "_thread", "weakref")
_NOT_COMPUTED_WITH = ("_trainer", "_fabric")
_TABLES = (dict, OrderedDict, set)


class Opaque:
    """An object whose contents cannot be seen: the same only if it is the same object."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.thing is other.thing

    def __repr__(self) -> str:
        return _name(type(self.thing))

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class Snapshot:
    """Contents as they were, with copies of all tensors and arrays."""

    def __init__(self, contents: list[object]) -> None:
        self.leaves = [_copied(leaf) for leaf in contents]

    def holds(self, contents: list[object]) -> bool:
        """Whether the contents are still the same, bit by bit."""
        if len(contents) != len(self.leaves):
            return False
        return all(map(same, self.leaves, contents))


def _copied(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        with torch.inference_mode(False), torch.no_grad():
            return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def same(one: object, two: object) -> bool:
    """Whether two leaves are of one type and equal, bit by bit."""
    if type(one) is str or not isinstance(one, Tensor | np.ndarray):
        return type(one) is type(two) and one == two
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and same_bits(one, two)
    if not isinstance(two, np.ndarray) or one.dtype != two.dtype or one.shape != two.shape:
        return False
    return one.tobytes() == two.tobytes()


def contents_of(thing: object) -> list[object]:
    """Text, numbers, tensors, arrays and opaque objects: all that a thing consists of, in order."""
    return Walk(thing).leaves


class Walk:
    """A way through all that a thing consists of.

    Attributes:
        leaves: The contents.
        met: By its id, the number of every object that can change, and the object itself, so that
            its id is not used again.
    """

    def __init__(self, thing: object) -> None:
        self.leaves: list[object] = []
        self.met: dict[int, tuple[int, object]] = {}
        self.add(thing)

    def add(self, thing: object) -> None:
        """Goes on to a part."""
        if isinstance(thing, _PLAIN):
            self.leaves.append(thing)
        elif isinstance(thing, _NUMBERS):
            self.leaves.append(f"{type(thing).__name__} {thing!r}")
            if isinstance(thing, np.void):  # the one kind of number that can change
                self.met.setdefault(id(thing), (len(self.met), thing))
        elif id(thing) in self.met:
            self.leaves.append(f"met as {self.met[id(thing)][0]}")
        else:
            self.met[id(thing)] = (len(self.met), thing)
            self._add_new(thing)

    def _add_new(self, thing: object) -> None:
        kind = _name(type(thing))
        if isinstance(thing, Tensor):
            self._add_tensor(thing)
        elif isinstance(thing, np.ndarray) and thing.dtype != object:
            self.leaves.append(thing)
        elif isinstance(thing, Mapping):
            self._add_named(kind, thing)
        elif isinstance(thing, list | tuple | deque | np.ndarray):
            self._add_all(kind, thing)
        elif isinstance(thing, set | frozenset):
            self._add_all(kind, sorted(thing, key=repr))
        elif isinstance(thing, types.FunctionType):
            self._add_function(thing)
        elif isinstance(thing, type):
            self._add_class(thing)
        elif isinstance(thing, _NAMED):
            self.leaves.append(_name(thing))
        else:
            self._add_object(thing)

    def _add_all(self, kind: str, parts: Iterable[object]) -> None:
        parts = list(parts)
        self.leaves.append(f"{kind} of {len(parts)}")
        for part in parts:
            self.add(part)

    def _add_named(self, kind: str, parts: Mapping[Any, object]) -> None:
        self.leaves.append(f"{kind} of {len(parts)}")
        for name, part in list(parts.items()):
            self.add(name)
            self.add(part)

    def _add_tensor(self, tensor: Tensor) -> None:
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
            self._add_named("tensor", {name: getattr(tensor, name) for name in names})
            self.add(context)
        elif tensor.is_meta:
            self.leaves.append(f"meta {tensor.dtype} {tuple(tensor.shape)}")
        elif tensor.is_quantized:
            self.leaves.append(tensor.dequantize())
        else:
            dense = tensor if tensor.layout == torch.strided else tensor.detach().to_dense()
            self.leaves.append(dense)

    def _add_object(self, thing: object) -> None:
        if isinstance(thing, types.MethodType):
            self._add_all("method", (thing.__func__, thing.__self__))
        elif isinstance(thing, functools.partial):
            self._add_all("partial", (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, torch.Generator):
            self.leaves.append(thing.get_state())
        elif isinstance(thing, staticmethod | classmethod):
            self.add(thing.__func__)
        elif isinstance(thing, property):
            self._add_all("property", (thing.fget,))
        else:
            self._add_attributes(thing)

    def _add_attributes(self, thing: object) -> None:
        kind = type(thing)
        self.add(kind)
        named = {name: getattr(thing, name) for name in slots_of(kind) if hasattr(thing, name)}
        named.update(getattr(thing, "__dict__", {}))
        if not named or not is_entered(thing):
            self.leaves.append(Opaque(thing))
            return
        for name, part in named.items():
            # Most of what a module holds are empty tables of hooks.
            if name not in _NOT_COMPUTED_WITH and not is_empty_table(part):
                self.leaves.append(name)
                self.add(part)
        self.leaves.append("end")

    def _add_class(self, thing: type) -> None:
        self.leaves.append(_name(thing))
        if is_entered(thing):
            own = {n: v for n, v in vars(thing).items() if n not in _MADE_BY_PYTHON}
            self._add_named("class", own)
            self._add_all("bases", thing.__bases__)

    def _add_function(self, function: types.FunctionType) -> None:
        self.leaves.append(_name(function))
        if not is_entered(function):
            return
        names, constants = code_of(function.__code__)
        self.leaves.append(constants)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        self._add_all("closure", (*cells, function.__defaults__, function.__kwdefaults__))
        for name in names:
            self._add_global(function.__globals__.get(name), names)
        if function.__dict__:
            self._add_named("function", function.__dict__)

    def _add_global(self, thing: object, names: tuple[str, ...]) -> None:
        """What a function refers to; of the user's own modules, what it may take from there."""
        if is_own_module(thing):
            self._add_all(_name(thing), [vars(thing).get(name) for name in names])
        else:
            self.add(thing)


_MADE_BY_PYTHON = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",  # written down when an object is copied or pickled
    "__abstractmethods__",
    "_abc_impl",
)


def _name(thing: object) -> str:
    module = getattr(thing, "__module__", None) or ""
    return f"{module}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[str, ...]:
    """The names of attributes that are not in an object's `__dict__`."""
    found = [vars(cls).get("__slots__", ()) for cls in kind.__mro__]
    return tuple(s for slots in found for s in ((slots,) if isinstance(slots, str) else slots))


@functools.lru_cache(maxsize=1024)
def code_of(code: types.CodeType) -> tuple[tuple[str, ...], bytes]:
    """All names that a function refers to, inner functions included, and what it does."""
    inner = [code_of(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    names = dict.fromkeys((*code.co_names, *(name for each, _ in inner for name in each)))
    plain = [_constant(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    own = "\0".join((*plain, *code.co_names, *code.co_varnames)).encode()
    return tuple(names), b"\0".join((code.co_code, own, *(each for _, each in inner)))


def _constant(value: object) -> str:
    """The constant as text; sets have another order in every process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def is_entered(thing: object) -> bool:
    """Whether a class, function or object is looked into; of installed code the name counts."""
    if isinstance(thing, type | types.FunctionType):
        return not _is_installed(thing.__module__)
    return type(thing).__module__.partition(".")[0] not in _NOT_ENTERED


def is_empty_table(part: object) -> bool:
    """Whether an attribute is a table, of hooks say, without any entry."""
    return type(part) in _TABLES and not part


def is_own_module(thing: object) -> bool:
    """Whether a thing is a module of the user's, not an installed one."""
    return isinstance(thing, types.ModuleType) and not _is_installed(thing.__name__)


@functools.lru_cache(maxsize=1024)
def _is_installed(module: str | None) -> bool:
    """Whether a module's code stays as it is: of Python itself, or of an installed package."""
    root = (module or "").partition(".")[0]
    if root in sys.stdlib_module_names or root in ("torch", "numpy", "howsure"):
        return root != "__main__"
    path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
