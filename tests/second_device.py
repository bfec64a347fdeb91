"""A second device without a GPU: CPU tensors that are tagged, and operations that check the tags.

Storages are tagged, so that views and `module.data` carry the tag of their memory. A function mode
answers `tensor.device` and takes `device=`; a dispatch mode, below autograd and vmap, refuses what
CUDA would refuse: operands on two devices, except CPU scalars, copies and CPU indices.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, SECOND = torch.device("cpu"), torch.device("cuda", 1)

_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten.copy.default}
_INDEXING = {_aten.index.Tensor, _aten._unsafe_index.Tensor}
_INDEXED_WRITES = {
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
}
# Scalars of another device are refused by these, too: their operands become one tensor.
_JOINS = {_aten.stack.default, _aten.cat.default}
_TO_NUMPY = {Tensor.numpy, Tensor.__array__}
_COMPILED = type(torch.add), type(Tensor.add)
# Each access of a getter makes a new, equal object.
_DEVICE, _IS_CUDA, _IS_CPU = (
    vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cuda", "is_cpu")
)


class WrongDeviceError(RuntimeError):
    """Operands lie on two devices, or memory of the second one was read as if on the CPU."""


class _Tags:
    """The device of each storage; what has no tag is on the CPU."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[StorageWeakRef, torch.device]] = {}
        # Where compiled torch functions make new tensors: `one_hot` does, on its input's device.
        self.inside = CPU
        self.operations = 0  # with a tensor on the second device
        self.refusals: list[str] = []  # also those that a fallback has caught

    def refuse(self, sentence: str) -> WrongDeviceError:
        frames = (f for f in traceback.extract_stack() if "/howsure/" in f.filename)
        where = " < ".join(
            f"{f.filename.split('/howsure/')[1]}:{f.lineno}" for f in list(frames)[:-4:-1]
        )
        self.refusals.append(f"{sentence} ({where})")
        return WrongDeviceError(self.refusals[-1])

    def device(self, tensor: Tensor) -> torch.device:
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if tensor.layout != torch.strided or tensor.device != CPU:
            return tensor.device
        storage = tensor.untyped_storage()
        reference, device = self.storages.get(storage._cdata, (None, CPU))
        return CPU if reference is None or reference.expired() else device

    def set(self, tensor: Tensor, device: torch.device) -> None:
        if tensor.layout == torch.strided and tensor.device == CPU:
            storage = tensor.untyped_storage()
            self.storages[storage._cdata] = StorageWeakRef(storage), device


class _Dispatch(TorchDispatchMode):
    """Checks the devices of all operands and tags the results."""

    def __init__(self, tags: _Tags) -> None:
        super().__init__()
        self.tags = tags

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, dict(kwargs or {}))

    def _run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = [self.tags.device(tensor) for tensor in tensors]
        self.tags.operations += SECOND in devices
        device = self._common_device(func, args, tensors, devices)
        if SECOND in devices and isinstance(kwargs.get("generator"), torch.Generator):
            raise self.tags.refuse(f"{func}: a generator of the CPU for a tensor on {SECOND}")
        results = func(*args, **kwargs)
        storages = {tensor.untyped_storage()._cdata for tensor in tensors if _has_storage(tensor)}
        for result in tree_leaves(results):
            is_new = isinstance(result, Tensor) and _has_storage(result)
            if is_new and result.untyped_storage()._cdata not in storages:
                self.tags.set(result, device)
        return results

    def _common_device(
        self,
        func: Any,
        args: Sequence[Any],
        tensors: Sequence[Tensor],
        devices: Sequence[torch.device],
    ) -> torch.device:
        pairs = list(zip(tensors, devices, strict=True))
        if func in _COPIES:
            return devices[0]
        if func in _INDEXING or func in _INDEXED_WRITES:
            # Indices may be on the CPU whatever is indexed, never the other way round.
            indices = {id(leaf) for leaf in tree_leaves(args[1])}
            pairs = [(t, d) for t, d in pairs if id(t) not in indices or d != CPU]
        used = {d for t, d in pairs if t.dim() or d != CPU or func in _JOINS}
        if len(used) > 1:
            shapes = ", ".join(f"{tuple(t.shape)} on {d}" for t, d in pairs)
            raise self.tags.refuse(f"{func}: {shapes}")
        if used:
            return used.pop()
        return CPU if tensors else self.tags.inside


class _Functions(TorchFunctionMode):
    """Answers and takes the name of the second device, which torch itself would refuse."""

    def __init__(self, tags: _Tags) -> None:
        super().__init__()
        self.tags = tags

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        for kind in types:
            # What a subclass does with the call is watched, too.
            if "__torch_function__" in vars(kind) and kind not in (Tensor, nn.Parameter):
                with self:
                    return kind.__torch_function__(func, types, args, kwargs)
        if func == _DEVICE:
            return self.tags.device(args[0])
        if func == _IS_CUDA:
            return self.tags.device(args[0]) == SECOND
        if func == _IS_CPU:
            return self.tags.device(args[0]) == CPU
        if func in _TO_NUMPY and self.tags.device(args[0]) == SECOND:
            raise self.tags.refuse("can't convert a tensor of the second device to numpy")
        if func is Tensor.cpu:
            return self._move(args[0], CPU)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        device = kwargs.pop("device", None)
        if func is Tensor.new_tensor and device is None:
            device = self.tags.device(args[0])
        if device is None and isinstance(func, _COMPILED):
            return self._call(func, args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        device = torch.device(device)
        if device == SECOND and isinstance(kwargs.get("generator"), torch.Generator):
            raise self.tags.refuse(f"{func}: a generator of the CPU for {SECOND}")
        result = func(*args, **kwargs, device=CPU if device == SECOND else device)
        return self._move(result, device) if isinstance(result, Tensor) else result

    def _call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        leaves = tree_leaves((args, kwargs))
        devices = {self.tags.device(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        before, self.tags.inside = self.tags.inside, SECOND if SECOND in devices else CPU
        try:
            return func(*args, **kwargs)
        finally:
            self.tags.inside = before

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`tensor.to(device, dtype)` or `tensor.to(other)`, with the tags."""
        device = kwargs.pop("device", None)
        kwargs.pop("non_blocking", None)
        for arg in args:
            if isinstance(arg, Tensor):
                device, kwargs["dtype"] = self.tags.device(arg), arg.dtype
            elif isinstance(arg, str | torch.device):
                device = arg
            elif isinstance(arg, torch.dtype):
                kwargs["dtype"] = arg
        cast = tensor.to(**kwargs) if any(kwargs.values()) else tensor
        device = None if device is None else torch.device(device)
        if device is not None and device.type not in ("cpu", "cuda"):
            return cast.to(device)
        return cast if device is None else self._move(cast, device)

    def _move(self, tensor: Tensor, device: torch.device) -> Tensor:
        if self.tags.device(tensor) == device:
            return tensor
        copy = tensor.clone()
        inner = copy
        while torch._C._functorch.is_functorch_wrapped_tensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        self.tags.set(inner, device)
        return copy


# One for all: what howsure keeps for a device is found again later.
_TAGS = _Tags()


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device == CPU


@contextmanager
def second_device() -> Iterator[_Tags]:
    """Within it `.to(SECOND)` works, for tensors and modules."""
    _TAGS.operations, _TAGS.refusals = 0, []
    with _Dispatch(_TAGS), _Functions(_TAGS):
        yield _TAGS
