"""Derivatives of rules: directions pushed through a function, and slopes of scalar functions."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

# From primals to the tensors that are differentiated, and others that are only evaluated.
Function = Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
Pushed = tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]
Scalar = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Partials = tuple[Tensor, Tensor, Tensor, Tensor]


# Forward mode counts its levels in one place for all threads (torch 2.13), and there is one list of
# warning filters: two threads at once would lose tangents, some without a word.
_one_at_a_time = threading.RLock()


_is_pushing: ContextVar[bool] = ContextVar("is_pushing", default=False)


def evaluated(tensor: Tensor) -> Tensor:
    """The tensor for values beside: without derivatives inside `push`, where they would be lost."""
    return tensor.detach() if _is_pushing.get() else tensor


def push(function: Function, primals: Sequence[Tensor], directions: Sequence[Tensor]) -> Pushed:
    """The function's values, J d for every direction d in front, and the values beside.

    The values are computed once: only the derivatives are batched.
    """

    def forward(*direction: Tensor) -> Any:
        token = _is_pushing.set(True)
        try:
            return torch.func.jvp(function, tuple(primals), direction, has_aux=True)
        finally:
            _is_pushing.reset(token)

    def backward(*direction: Tensor) -> Any:
        return _reversed_twice(function, tuple(primals), direction)

    if torch.compiler.is_compiling():
        return _differences(function, primals, directions)
    with quiet():
        try:
            return _each(forward, directions)
        except NotImplementedError:  # an operation without a forward derivative
            return _each(backward, directions)


def _each(push_one: Callable[..., Any], directions: Sequence[Tensor]) -> Pushed:
    """All directions at once where that works."""
    try:
        return torch.vmap(push_one, out_dims=(None, 0, None))(*directions)  # pyright: ignore[reportArgumentType]
    except NotImplementedError:
        raise
    except (RuntimeError, ValueError):
        pass  # operations that write in place cannot be batched
    rows = [push_one(*(d[k] for d in directions)) for k in range(directions[0].shape[0])]
    pushed = tuple(torch.stack(column) for column in zip(*(r[1] for r in rows), strict=True))
    return rows[0][0], pushed, rows[0][2]


def _differences(
    function: Function, primals: Sequence[Tensor], directions: Sequence[Tensor]
) -> Pushed:
    """J d by central differences: `torch.export` cannot trace forward mode inside a rule (2.13).

    Expectations are smooth on the scale of the noise, of which a step is a tenth: the error is
    below 1 %.
    """
    values, beside = function(*primals)
    step = 0.1 * directions[0].shape[0] ** 0.5
    rows = []
    for k in range(directions[0].shape[0]):
        steps = [step * d[k] for d in directions]
        ahead, _ = function(*(p + s for p, s in zip(primals, steps, strict=True)))
        behind, _ = function(*(p - s for p, s in zip(primals, steps, strict=True)))
        rows.append([(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)])
    return values, tuple(torch.stack(column) for column in zip(*rows, strict=True)), beside


def for_each(
    function: Callable[..., tuple[Tensor, ...]], directions: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The function of each direction, stacked in front."""
    if not torch.compiler.is_compiling():
        with quiet():
            try:
                return torch.vmap(function)(*directions)
            except (RuntimeError, ValueError):
                pass
    rows = [function(*(d[k] for d in directions)) for k in range(directions[0].shape[0])]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


@contextmanager
def quiet() -> Iterator[None]:
    """One thread at a time, without the warning for kernels that run one by one: slow, not wrong.

    Whatever uses forward mode runs inside.
    """
    with _one_at_a_time, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def _reversed_twice(
    function: Function, primals: tuple[Tensor, ...], direction: tuple[Tensor, ...]
) -> Pushed:
    """J d as the transpose of the transpose, by reverse mode alone."""
    values, pull, beside = torch.func.vjp(function, *primals, has_aux=True)  # pyright: ignore[reportAssignmentType]
    zeros = tuple(torch.zeros_like(value) for value in values)
    _, push_back = torch.func.vjp(lambda *cotangents: pull(cotangents), *zeros)  # pyright: ignore[reportAssignmentType]
    return values, push_back(direction), beside


def partials(function: Scalar, mean: Tensor, var: Tensor) -> Partials:
    """Mean and variance of an elementwise function f, its slope E[f'] and curvature E[f''].

    E[f'] = d E[f] / d mean, and E[f''] = 2 d E[f] / d var (the heat equation): one backward pass.
    """
    if torch.compiler.is_compiling():
        return _difference_partials(function, mean, var)
    out_mean, pull, out_var = torch.func.vjp(function, mean, var, has_aux=True)  # pyright: ignore[reportAssignmentType]
    slope, by_var = pull(torch.ones_like(out_mean))
    return out_mean, out_var, slope, 2 * by_var


def _difference_partials(function: Scalar, mean: Tensor, var: Tensor) -> Partials:
    """The same by differences over a tenth of the noise, for `torch.export`."""
    smallest = 1e-3 * mean.abs().clamp(min=1)
    step = torch.maximum(0.1 * var.sqrt().to(mean.dtype), smallest)
    (ahead, _), (here, out_var), (behind, _) = (
        function(mean + sign * step, var) for sign in (1, 0, -1)
    )
    slope = (ahead - behind) / (2 * step)
    return here, out_var, slope, (ahead - 2 * here + behind) / step.square()
