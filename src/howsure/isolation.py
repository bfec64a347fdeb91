"""A copy of a model for a single pass: it shares the weights, and copies all that a call may write.

A model may count its calls, keep a hidden state in an object, append to a list of its own, or write
into a buffer. A pass on such a copy leaves the user's model as it was, whatever is written and
wherever it is interrupted; there is nothing to put back. Parameters and torch's own layers, which
write nothing in eval mode, are shared, so that a copy costs microseconds.
"""

from __future__ import annotations

import copy
import hashlib
import os
import random
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Objects that a copy follows, and no more: what is larger is a trainer or a data set, not a state.
_MOST_OBJECTS = 20_000
# Numbers of a weight by which it is recognized: training changes all of them.
_KEPT_NUMBERS = 64
_SHARED = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType)
_SWITCHES = (bool, int, float, str)
_TABLES = frozenset((dict, OrderedDict, set))
# Where a copy of a module keeps the module that it is a copy of: paths of layers are the model's.
ORIGINAL = "_howsure_original"


def modules_of(model: Any) -> list[nn.Module]:
    """A module and all below it, each once, in no order that matters; sooner than `modules()`."""
    modules: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model] if isinstance(model, nn.Module) else []
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in modules:
            modules[id(module)] = module
            waiting.extend(module._modules.values())
    return list(modules.values())


def structure_hash(model: Any) -> int:
    """What may decide which layers a model calls, apart from the values of tensors."""
    return model_fingerprint(model)[0]


Fingerprint = tuple[int, int]
_known_fingerprint: ContextVar[tuple[Any, Fingerprint] | None] = ContextVar(
    "fingerprint", default=None
)


@contextmanager
def fingerprint_kept(model: Any) -> Iterator[Fingerprint]:
    """The model's fingerprint; inside, nobody looks at the model again for it."""
    state = model_fingerprint(model)
    token = _known_fingerprint.set((model, state))
    try:
        yield state
    finally:
        _known_fingerprint.reset(token)


def model_fingerprint(model: Any) -> Fingerprint:
    """What decides how a model runs, as two hashes: its structure, and its weights.

    The structure is classes, plain attributes such as a switch, functions, and the keys of tables
    of hooks. Weights count by where they are and how often they were written.
    """
    known = _known_fingerprint.get()
    if known is not None and known[0] is model:
        return known[1]
    structure: list[Any] = []
    writes: list[tuple[int, int]] = []
    for module in modules_of(model):
        structure.append(type(module))
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in _TABLES:
                # Most of what a module has are empty tables of hooks.
                if value:
                    structure.append((name, *value))
            elif kind in _SWITCHES or isinstance(value, _SWITCHES):
                structure.append((name, value))
            elif isinstance(value, dict):
                structure.append((name, *value))
            elif value is not None and callable(value):
                structure.append((name, id(value)))
        for table in (module._parameters, module._buffers):
            for weight in table.values():
                if weight is not None:
                    version = 0 if weight.is_inference() else weight._version
                    writes.append((weight.data_ptr(), version))
    return hash(tuple(structure)), hash(tuple(writes))


def identify(model: Any) -> tuple[str, Tensor]:
    """What a fit belongs to: a digest of the structure, and some numbers of every weight.

    The structure is the names, classes and options of all modules, and the shapes of the weights.
    """
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, nn.Module):
        return "", torch.empty(0)
    digest = hashlib.sha256()
    for name, module in inner.named_modules():
        digest.update(f"{name} {type(module).__name__} {module.extra_repr()}\n".encode())
    parts = [torch.empty(0)]
    for name, weight in (*inner.named_parameters(), *inner.named_buffers()):
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        if weight.is_floating_point():
            flat = weight.detach().flatten()
            parts.append(flat[:: max(1, len(flat) // _KEPT_NUMBERS)].float().cpu())
    return digest.hexdigest(), torch.cat(parts)


def isolated(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model for one pass; itself where there is nothing that a call could write.

    With gradients, weights that were made in inference mode are copied as well: autograd cannot
    keep those for a backward pass.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return model
    copier = _Copier(torch.is_grad_enabled())
    if not isinstance(model, nn.Module):
        return copier.copy(model)
    copier.find_modules(model, set())
    return copier.module(model) if id(model) in copier.written else model


def writes_nothing(model: Callable[..., Any]) -> bool:
    """Whether there is nothing that a call of the model could write, with or without gradients."""
    if isinstance(model, torch.jit.ScriptModule):
        return True
    return isinstance(model, nn.Module) and not _Copier(True).find_modules(model, set())


class _Copier:
    """One copy of a model and of what it refers to, object by object.

    Attributes:
        written: The modules, by identity, of which a call may write something.
        copies: The copy of each object; the objects are kept, so that identities stay theirs.
    """

    def __init__(self, with_gradients: bool) -> None:
        self.with_gradients = with_gradients
        self.written: dict[int, nn.Module] = {}
        self.copies: dict[int, tuple[Any, Any]] = {}

    def find_modules(self, module: nn.Module, visited: set[int]) -> bool:
        """Whether a module, or one below it, has to be copied; notes those that have."""
        if id(module) in visited:
            return id(module) in self.written
        visited.add(id(module))
        below = [
            self.find_modules(child, visited)
            for child in module._modules.values()
            if child is not None
        ]
        if any(below) or self._may_write(module):
            self.written[id(module)] = module
            if not is_of_torch(module):  # It may write into the layers that it has.
                self.written.update((id(layer), layer) for layer in modules_of(module))
            return True
        return False

    def _may_write(self, module: nn.Module) -> bool:
        if isinstance(module, torch.jit.ScriptModule):
            return False
        if not is_of_torch(module) or "forward" in module.__dict__:
            return True
        if module._forward_pre_hooks or module._forward_hooks:  # as pruning has, which sets weights
            return True
        weights = (*module._parameters.values(), *module._buffers.values())
        return self.with_gradients and any(w is not None and w.is_inference() for w in weights)

    def module(self, module: nn.Module) -> nn.Module:
        """The copy of a module; modules that write nothing are themselves."""
        if id(module) not in self.written:
            return module
        if id(module) in self.copies:
            return self.copies[id(module)][1]
        if isinstance(module, torch.jit.ScriptModule):
            return module
        twin = object.__new__(type(module))
        self.copies[id(module)] = module, twin
        attributes = twin.__dict__
        attributes[ORIGINAL] = module
        if is_of_torch(module) and "forward" not in module.__dict__:
            return self._layer(module, twin)
        for name, value in module.__dict__.items():
            if name == "_parameters":
                attributes[name] = {key: self._weight(weight) for key, weight in value.items()}
            elif name == "_modules":
                attributes[name] = {
                    key: None if child is None else self.module(child)
                    for key, child in value.items()
                }
            elif type(value) in _SHARED:
                attributes[name] = value
            elif type(value) in _TABLES and (not value or name.endswith("_hooks")):
                attributes[name] = value.copy()  # What hooks write is their owner's business.
            else:
                attributes[name] = self.copy(value)
        for name, method in _methods_with_state(type(module)):
            attributes.setdefault(name, types.MethodType(self.copy(method), twin))
        return twin

    def _layer(self, layer: nn.Module, twin: nn.Module) -> nn.Module:
        """The copy of a layer of torch's own: what others may write are its tables."""
        # Not by `setattr`, with which a module looks what it is given.
        attributes = twin.__dict__
        for name, value in layer.__dict__.items():
            attributes[name] = value.copy() if type(value) in _TABLES else value
        attributes["_parameters"] = {k: self._weight(w) for k, w in layer._parameters.items()}
        attributes["_buffers"] = {key: self.copy(buffer) for key, buffer in layer._buffers.items()}
        attributes["_modules"] = {
            key: None if child is None else self.module(child)
            for key, child in layer._modules.items()
        }
        return twin

    def _weight(self, weight: Tensor | None) -> Tensor | None:
        if weight is None or not self.with_gradients or not weight.is_inference():
            return weight
        return nn.Parameter(weight.clone(), requires_grad=weight.requires_grad)

    def copy(self, value: Any) -> Any:
        """The copy of any value: what can be written is copied, the rest shared."""
        kind = type(value)
        if kind in _SHARED or isinstance(value, (nn.Parameter, type)):
            return value
        if id(value) in self.copies:
            return self.copies[id(value)][1]
        if isinstance(value, nn.Module):
            return self.module(value)
        if len(self.copies) > _MOST_OBJECTS:
            return value
        twin = self._copy_of(value, kind)
        self.copies[id(value)] = value, twin
        return twin

    def _copy_of(self, value: Any, kind: type) -> Any:
        if isinstance(value, Tensor):
            twin = value.detach().clone()
            return twin.requires_grad_() if value.requires_grad else twin
        if kind in (dict, OrderedDict):
            self.copies[id(value)] = value, (twin := kind())
            twin.update((key, self.copy(item)) for key, item in value.items())
            return twin
        if kind is list:
            self.copies[id(value)] = value, (twin := [])
            twin.extend(self.copy(item) for item in value)
            return twin
        if kind is tuple:
            return tuple(self.copy(item) for item in value)
        if kind in (set, frozenset, bytearray):
            return kind(value)
        if kind is deque:
            return deque((self.copy(item) for item in value), value.maxlen)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return kind(*map(self.copy, value))
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            return types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        if kind in (defaultdict, Counter):
            self.copies[id(value)] = value, (twin := copy.copy(value))
            for key, item in value.items():
                twin[key] = self.copy(item)
            return twin
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if isinstance(
            value, (np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
        ):
            return copy.deepcopy(value)
        return self._object(value, kind)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """The function over copies of the variables that it encloses; itself if there are none."""
        cells = function.__closure__ or ()
        contents = [_content(cell) for cell in cells]
        # Before its variables, one of which may be the function itself.
        self.copies[id(function)] = function, function
        copies = [self.copy(content) for content in contents]
        if all(one is two for one, two in zip(contents, copies, strict=True)):
            return function
        closure = tuple(
            cell if one is two else types.CellType(two)
            for cell, one, two in zip(cells, contents, copies, strict=True)
        )
        code, name = function.__code__, function.__name__
        twin = types.FunctionType(code, function.__globals__, name, function.__defaults__, closure)
        twin.__kwdefaults__ = function.__kwdefaults__
        twin.__dict__.update(function.__dict__)
        return twin

    def _object(self, value: Any, kind: type) -> Any:
        """The copy of an object of a Python class; what is written in C is shared."""
        attributes = getattr(value, "__dict__", {})
        slots = [name for base in kind.__mro__ for name in _slots_of(base) if hasattr(value, name)]
        if not isinstance(attributes, dict) or not (slots or hasattr(value, "__dict__")):
            return value
        try:
            twin = object.__new__(kind)
        except TypeError:  # A class written in C makes its objects in a way of its own.
            try:
                twin = copy.copy(value)
            except Exception:  # Whatever it says, there is no copy: a lock, a file.
                return value
        self.copies[id(value)] = value, twin
        try:
            for name in slots:
                object.__setattr__(twin, name, self.copy(getattr(value, name)))
            if attributes:
                twin.__dict__.update((name, self.copy(item)) for name, item in attributes.items())
        except (AttributeError, TypeError):
            return value
        return twin


def _slots_of(kind: type) -> list[str]:
    """The names of the attributes that a class of Python keeps in slots."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def is_of_torch(module: nn.Module) -> bool:
    """Whether it is a layer of torch's own, which writes nothing in eval mode."""
    return type(module).__module__.startswith("torch.")


def _methods_with_state(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The methods of a user's class that enclose variables, which they could write."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            continue
        for name, value in vars(base).items():
            if type(value) is types.FunctionType and value.__closure__:
                contents = [_content(cell) for cell in value.__closure__]
                # A method that calls `super()` encloses its class.
                if not all(isinstance(content, (*_SHARED, nn.Parameter)) for content in contents):
                    yield name, value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not yet assigned.
        return None


# All threads draw from one stream, so that one at a time may have it.
one_at_a_time = threading.RLock()
# A child of `fork` has no thread that would give back what another thread holds at that moment.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=one_at_a_time.acquire,
        after_in_parent=one_at_a_time.release,
        after_in_child=one_at_a_time.release,
    )


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Random numbers that are drawn inside are not the caller's: torch's, numpy's and Python's."""
    with one_at_a_time:
        numpy_state = np.random.get_state()  # noqa: NPY002  (a model may draw from it)
        python_state = random.getstate()
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """For a model that draws random numbers: the same ones for a seed; the caller's stay as is.

    All threads draw from one stream, so that one at a time may have it.
    """
    with one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def random_state() -> tuple[Any, ...]:
    """The state of the generators that a model may draw from."""
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, np.asarray(numbers).tobytes(), tuple(rest), random.getstate()
