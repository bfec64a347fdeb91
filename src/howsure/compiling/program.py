"""One method for inputs of one shape, traced and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.compiling.tracing import traced
from howsure.methods import METHODS
from howsure.methods.adjoint import doubts
from howsure.methods.setup import Setup
from howsure.prediction import Prediction
from howsure.structure import Parts, map_leaves

Run = Callable[[Any], Prediction]

# Drawn anew in eager; compiled, the draws would be constants as large as the input, times samples.
_DRAWS_NOISE = ("noise_sampling", "control_variate")


class NotCompilableError(RuntimeError):
    """The method or the model's output has no compiled form."""


def compiled_method(setup: Setup, method: str, x: Any) -> Run:
    """The method as a compiled function of inputs that are shaped like `x`.

    Weights become constants, which lets the compiler fold batch norms into convolutions and lay
    weights out for the processor.
    """
    if method in _DRAWS_NOISE:
        raise NotCompilableError(f'the method "{method}" draws noise in every call')
    METHODS[method](setup, x)  # Finds dropout sites and squares weights, outside the trace.
    leaves, spec = pytree.tree_flatten(x)
    found: list[Parts] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        filled = pytree.tree_unflatten(_with(leaves, tensors), spec)
        found.append(Parts(METHODS[method](setup, filled)))
        return found[-1].tensors

    graph = traced(flat, tensors_of(leaves))
    _check_floating(found[-1])
    options: dict[str, Any] = {"freezing": True}
    run = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
    predict = _runner(run, found[-1])
    predict(x)  # torch compiles when it is first called; errors belong here.
    return predict


def _runner(run: Callable[..., Sequence[Tensor]], parts: Parts) -> Run:
    def predict(x: Any) -> Prediction:
        with torch.no_grad():
            outputs = run(*tensors_of(pytree.tree_leaves(x)))
        return _noted(parts.filled(outputs))

    return predict


def _noted(prediction: Prediction) -> Prediction:
    """The prediction with the notes that depend on its values."""
    if prediction.trust is None:
        return prediction
    return replace(prediction, notes=(*prediction.notes, *doubts(prediction.trust)))


def _check_floating(parts: Parts) -> None:
    """A tensor that is not floating point would keep the value it had in the trace."""
    left: list[Tensor] = []
    map_leaves(lambda leaf: left.append(leaf) if isinstance(leaf, Tensor) else None, parts.template)
    if left:
        raise NotCompilableError(f"the model returns a tensor of {left[0].dtype}")


def tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    """The tensors among the leaves of an input."""
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _with(leaves: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    remaining = iter(tensors)
    return [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
