"""How torch spells its operations: the names that people use, and all objects behind a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import _nn  # pyright: ignore[reportAttributeAccessIssue]

Target = Callable[..., Any]


def operation_name(target: Target) -> str:
    """How a user writes the operation, e.g. `torch.Tensor.add` or `torch.nn.functional.relu`."""
    owner = getattr(target, "__self__", None)
    name = getattr(target, "__name__", None) or repr(target)
    if name in ("__get__", "__set__") and owner is not None:
        # A property of Python, such as `__cuda_array_interface__`, has its name in its getter.
        return f"torch.Tensor.{getattr(owner, 'fget', owner).__name__}"
    if type(target).__name__ in ("OpOverload", "OpOverloadPacket"):
        return f"torch.ops.{target}"
    if type(target).__name__ in ("ScriptMethod", "ScriptFunction"):
        return "torch.jit.ScriptModule.forward"
    if hasattr(target, "__objclass__") or getattr(target, "__qualname__", "").startswith("Tensor"):
        return f"torch.Tensor.{name}"
    module = getattr(target, "__module__", None) or "torch"
    if module.startswith("torch._C._"):
        # `torch.linalg.svdvals` calls itself `torch._C._linalg.linalg_svdvals`.
        name = name.removeprefix(module.removeprefix("torch._C._") + "_")
    return f"{_PUBLIC_MODULES.get(module, module)}.{name}"


_PUBLIC_MODULES = {
    "torch._C._nn": "torch.nn.functional",
    "torch.functional": "torch",
    "torch._jit_internal": "torch.nn.functional",
    "torch._VF": "torch",
    "torch._C._special": "torch.special",
    "torch._C._linalg": "torch.linalg",
    "torch._C._fft": "torch.fft",
}


def spellings(*names: str, inplace: bool = True, first: Target | None = None) -> tuple[Target, ...]:
    """Every way in which torch spells the operations: function, method, in-place, operator, aten.

    `first` is the spelling whose signature the rule has, where that is not the first one found.

    An operation called `relu` is reached as `torch.relu`, `torch.relu_`, `Tensor.relu`,
    `Tensor.relu_`, `F.relu`, `F.relu_`, and in exported programs as `aten.relu.default`.
    """
    found: dict[Target, None] = {} if first is None else {first: None}
    for name in names:
        for variant in _variants(name, inplace):
            candidates = (getattr(namespace, variant, None) for namespace in _namespaces())
            found.update(dict.fromkeys(c for c in candidates if callable(c)))
            found.update(dict.fromkeys(_aten_overloads(variant)))
    if not found:
        raise ValueError(f"torch has no operation called {' or '.join(names)}.")
    return tuple(found)


def _variants(name: str, inplace: bool) -> tuple[str, ...]:
    if inplace:
        return (name, f"__{name}__", f"{name}_", f"__i{name}__")
    return (name, f"__{name}__")


def _namespaces() -> tuple[object, ...]:
    return (torch, torch.Tensor, torch.nn.functional, torch.special, _nn)


def _aten_overloads(name: str) -> Iterator[Target]:
    """The overloads of `aten.name`; `.out` overloads write elsewhere and are left out."""
    packet = None if name.startswith("__") else getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if "out" not in overload:
            yield getattr(packet, overload)
