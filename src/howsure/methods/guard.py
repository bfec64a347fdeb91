"""What a method leaves behind: nothing. The model's state and the random numbers stay the caller's.

A model may count its calls, keep a hidden state, or draw random numbers. Every pass of such a model
starts from the state in which the caller left it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from howsure.gradients.layout import RANDOM, Verdict, layout_of
from howsure.methods.passes import one_at_a_time
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.values.concrete import is_traced

Predict = Callable[[Setup, Any], Prediction]
_CONTAINERS = (MutableMapping, list, set, deque)
T = TypeVar("T")


UNUSED_RULES = (
    '`rules` is not used: it changes "adf" and "sampled_adf" alone, and this method runs the '
    "network itself."
)


def guarded(name: str, predict: Predict, *, may_draw: bool, has_rules: bool) -> Predict:
    """The method, which leaves the model as it was; an error if it cannot deal with random ones.

    A note says so if the user has given rules that it does not ask for.
    """

    def run(setup: Setup, x: Any) -> Prediction:
        found = predict(setup, x) if is_traced() else careful(setup, x)
        if not setup.rules or has_rules:
            return found
        return replace(found, notes=(*found.notes, UNUSED_RULES))

    def careful(setup: Setup, x: Any) -> Prediction:
        if may_draw:
            return from_one_state(predict, setup, x)
        numbers = torch.get_rng_state()
        try:
            found = from_one_state(predict, setup, x)
        except BaseException:
            torch.set_rng_state(numbers)
            raise
        drawn = "draws" in setup._verdicts or not torch.equal(numbers, torch.get_rng_state())
        # Another thread may have drawn them.
        if drawn and _is_random(setup, x):
            torch.set_rng_state(numbers)
            raise ValueError(
                f'The method "{name}" takes the model for a fixed function, but {RANDOM}. Use '
                '`method="noise_sampling"`, which samples these as well, or switch them off.'
            )
        return found

    return run


def _is_random(setup: Setup, x: Any) -> bool:
    return from_one_state(layout_of, setup, x).random


def from_one_state(predict: Callable[[Setup, Any], T], setup: Setup, x: Any) -> T:
    """The prediction with every pass from the same state of the model."""
    model, key = setup.model, ("state", id(setup.model))
    # The members of a list are predicted one by one.
    if not isinstance(model, nn.Module) or isinstance(
        model, (torch.jit.ScriptModule, nn.ModuleList)
    ):
        return predict(setup, x)
    # A model that has no state on the first call has none later: looking takes as long as a small
    # network.
    if _serves_many(setup, key):
        return predict(setup, x)
    with one_at_a_time:
        twin = setup._verdicts.get(key)
        if twin is None:
            with _restored(model) as state:
                found = predict(setup, x)
                has_changed = state.restore()
            setup._verdicts[key] = twin = _renewed(model) if has_changed else None
            if not has_changed:
                return found
        return predict(setup.with_(model=twin), x)


def _serves_many(setup: Setup, key: Any) -> bool:
    """Whether several threads may run the model: it neither writes to itself nor draws numbers."""
    known = list(setup._verdicts.values())
    is_random = any(isinstance(each, Verdict) and each.random for each in known)
    return setup._verdicts.get(key, key) is None and not is_random


def _renewed(model: nn.Module) -> nn.Module:
    """A model with the same layers, whose every call works on copies of its state."""
    twin = copy.copy(model)

    def forward(*args: Any, **kwargs: Any) -> Any:
        # Copies, since a backward pass may need the tensors as the call has left them.
        with _restored(model) as state:
            state.replace_tensors()
            return model.forward(*args, **kwargs)

    twin.__dict__["forward"] = forward
    return twin


@contextmanager
def _restored(model: nn.Module) -> Iterator[State]:
    state = State(model)
    try:
        yield state
    finally:
        state.restore()


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
