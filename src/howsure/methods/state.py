"""The state of a model, which a call may change: attributes, containers and buffers.

A model may count its calls, keep a hidden state, or write into a buffer.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (MutableMapping, list, set, deque)


def renewed(model: nn.Module) -> nn.Module:
    """A model with the same layers, whose every call works on copies of its state."""
    twin = copy.copy(model)

    def forward(*args: Any, **kwargs: Any) -> Any:
        # Copies, since a backward pass may need the tensors as the call has left them.
        with restored(model) as state:
            state.replace_tensors()
            return model.forward(*args, **kwargs)

    twin.__dict__["forward"] = forward
    return twin


@contextmanager
def restored(model: nn.Module) -> Iterator[State]:
    """Inside, the model may change; afterwards it is as it was, also after an exception."""
    state = State(model)
    try:
        yield state
    finally:
        state.restore()


def untouched(model: object) -> AbstractContextManager[object]:
    """`restored` around a trace, whose stand-ins a model may keep; of any model."""
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        return restored(model)
    return nullcontext()


class State:
    """Attributes and buffers of all layers; parameters are taken to be written by nobody."""

    def __init__(self, model: nn.Module) -> None:
        own = [module.__dict__ for module in model.modules()]
        inside = [each for attributes in own for each in attributes.values()]
        kept = [*own, *(each for each in inside if isinstance(each, _CONTAINERS))]
        self.containers = [(each, copy.copy(each)) for each in kept]
        tensors = {
            id(item): item for each in kept for item in _items(each) if isinstance(item, Tensor)
        }
        self.tensors = [
            (each, each.detach().clone())
            for each in tensors.values()
            if not isinstance(each, nn.Parameter)
        ]

    def replace_tensors(self) -> None:
        """Copies in place of all tensors, until they are restored."""
        copies = {id(own): before.clone() for own, before in self.tensors}
        for now, _ in self.containers:
            if isinstance(now, (MutableMapping, list)):
                for key in range(len(now)) if isinstance(now, list) else list(now):
                    now[key] = copies.get(id(now[key]), now[key])

    def restore(self) -> bool:
        """Puts everything back; whether anything had changed."""
        changed = [pair for pair in self.containers if not _same(*pair)]
        for now, before in changed:
            _refill(now, before)
        written = [pair for pair in self.tensors if not torch.equal(*pair)]
        with torch.no_grad():
            for now, before in written:
                now.data.resize_(before.shape).copy_(before)
        return bool(changed or written)


def _items(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, MutableMapping) else container)


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, MutableMapping) and list(now) != list(before):
        return False
    pairs = zip(_items(now), _items(before), strict=False)
    return len(now) == len(before) and all(one is two for one, two in pairs)


def _refill(now: Any, before: Any) -> None:
    now.clear()
    (now.extend if isinstance(now, (list, deque)) else now.update)(before)
