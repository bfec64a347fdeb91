"""What a model and its settings hold: tensors, which every call reads anew, and all else.

A compiled program reads all tensors that its wrapper holds as inputs, so that no edit of a weight,
a buffer or a tensor of the noise can make it stale, by whatever means it was written. All else that
a trace reads is frozen into the program: numbers, switches, structure, hooks, variables of closures
and globals. They make up a signature; a program is made anew where it differs.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_VALUES = frozenset(
    (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
)
_TABLES = frozenset((dict, OrderedDict, set))
_SEQUENCES = (list, tuple, deque)
_TENSORS = (Tensor, nn.Parameter, nn.Buffer) if hasattr(nn, "Buffer") else (Tensor, nn.Parameter)
# Their code is taken for fixed.
_INSTALLED = ("torch", "numpy", "howsure", "builtins")
# How many objects lead from a module to a value that is still looked at.
_DEPTH = 5


class State:
    """A walk through a model and its settings, without what no program can depend on.

    Attributes:
        signature: All but the values of tensors; compared with `==`.
        tensors: The dense tensors, each once, in order.
    """

    def __init__(self, *roots: object) -> None:
        self.signature: list[Hashable] = []
        self.tensors: list[Tensor] = []
        # Objects of which the identity counts: alive, no other has it.
        self._opaque: list[object] = []
        self._visited: dict[int, tuple[int, object]] = {}  # by identity, with their number
        for root in roots:
            self._add(root, 0)
        self._visited.clear()

    def _add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _VALUES:
            self.signature += (kind, value)
            return
        if id(value) in self._visited:  # Which objects are one and the same is part of it.
            self.signature.append(self._visited[id(value)][0])
            return
        self._visited[id(value)] = len(self._visited), value
        if isinstance(value, nn.Module):
            self._add_class(kind)
            self._add_attributes(vars(value), 0)
        elif kind in _TENSORS and value.layout is torch.strided and not value.is_meta:
            self.signature += (value.shape, value.stride(), value.dtype, value.device)
            self.tensors.append(value)
        elif depth > _DEPTH:
            self._add_opaque(value)
        elif isinstance(value, Mapping):
            self.signature += (kind, len(value))
            for key, item in value.items():
                self._add(key, depth + 1)
                self._add(item, depth + 1)
        elif isinstance(value, _SEQUENCES):
            self.signature += (kind, len(value))
            for item in value:
                self._add(item, depth + 1)
        elif isinstance(value, (set, frozenset)):
            self.signature.append(frozenset(map(repr, value)))
        elif isinstance(value, np.ndarray):
            self.signature += (value.shape, value.dtype.str, hash(value.tobytes()))
        elif isinstance(value, torch.Generator):
            self.signature.append(hash(value.get_state().numpy().tobytes()))
        elif kind is types.FunctionType:
            self._add_function(value, depth)
        elif kind is types.MethodType:
            self._add((value.__func__, value.__self__), depth)
        elif isinstance(value, functools.partial):
            self._add((value.func, value.args, value.keywords), depth)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self.signature.append(kind)
            for field in dataclasses.fields(value):
                self._add(getattr(value, field.name, None), depth + 1)
        elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
            self.signature.append(kind)
            self._add_attributes(vars(value), depth + 1)
        else:
            self._add_opaque(value)

    def _add_opaque(self, value: object) -> None:
        self._opaque.append(value)
        self.signature.append(id(value))

    def _add_attributes(self, attributes: Mapping[str, Any], depth: int) -> None:
        for name, item in attributes.items():
            # Most of what a module has are empty tables of hooks.
            if type(item) not in _TABLES or item:
                self.signature.append(name)
                self._add(item, depth)

    def _add_class(self, kind: type) -> None:
        """Numbers and methods of the user's own classes."""
        for base in kind.__mro__:
            self.signature.append(base)
            if base is object or base.__module__.partition(".")[0] in _INSTALLED:
                return
            if id(base) not in self._visited:
                self._visited[id(base)] = len(self._visited), base
                for name, item in vars(base).items():
                    if type(item) in _VALUES or type(item) is types.FunctionType:
                        self.signature.append(name)
                        self._add(item, 0)

    def _add_function(self, function: types.FunctionType, depth: int) -> None:
        """Code, enclosed variables, defaults, and the numbers, functions and tensors it names."""
        self.signature.append(function.__code__)
        if (function.__module__ or "").partition(".")[0] in _INSTALLED:
            return
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # Not yet assigned.
                content = None
            self._add(content, depth + 1)
        self._add(function.__defaults__, depth + 1)
        self._add(function.__kwdefaults__, depth + 1)
        for name in function.__code__.co_names:
            named = function.__globals__.get(name)
            if type(named) in _VALUES or isinstance(named, (types.FunctionType, Tensor)):
                self._add(named, depth + 1)
