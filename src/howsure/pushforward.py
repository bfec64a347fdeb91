"""Derivatives of rules: directions pushed through a function, and slopes of scalar functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# From primals to the tensors that are differentiated, and others that are only evaluated.
Function = Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
Pushed = tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]


def push(function: Function, primals: Sequence[Tensor], directions: Sequence[Tensor]) -> Pushed:
    """The function's values, J d for every direction d in front, and the values beside.

    The values are computed once: only the derivatives are batched.
    """

    def forward(*direction: Tensor) -> Any:
        return torch.func.jvp(function, tuple(primals), direction, has_aux=True)

    def backward(*direction: Tensor) -> Any:
        return _reversed_twice(function, tuple(primals), direction)

    if torch.compiler.is_compiling():
        return for_each(backward, directions, (None, 0, None))
    try:
        return for_each(forward, directions, (None, 0, None))
    except NotImplementedError:  # an operation without a forward derivative
        return for_each(backward, directions, (None, 0, None))


def for_each(function: Callable[..., Any], directions: Sequence[Tensor], out_dims: Any = 0) -> Any:
    """The function of each direction, stacked in front; what has no axis in `out_dims` once."""
    with warnings.catch_warnings():
        # Kernels without a batching rule run one by one: slow, not wrong.
        warnings.filterwarnings("ignore", "There is a performance drop")
        try:
            return torch.vmap(function, out_dims=out_dims)(*directions)
        except NotImplementedError:
            raise
        except (RuntimeError, ValueError):
            # Operations that write in place cannot be batched; one by one they can be pushed.
            count = directions[0].shape[0]
            rows = [function(*(d[k] for d in directions)) for k in range(count)]
    if out_dims == 0:
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))
    pushed = tuple(torch.stack(column) for column in zip(*(r[1] for r in rows), strict=True))
    return rows[0][0], pushed, rows[0][2]


def _reversed_twice(
    function: Function, primals: tuple[Tensor, ...], direction: tuple[Tensor, ...]
) -> Pushed:
    """J d as the transpose of the transpose: `torch.export` cannot trace forward mode (2.13)."""
    values, pull, beside = torch.func.vjp(function, *primals, has_aux=True)  # pyright: ignore[reportAssignmentType]
    zeros = tuple(torch.zeros_like(value) for value in values)
    _, push_back = torch.func.vjp(lambda *cotangents: pull(cotangents), *zeros)  # pyright: ignore[reportAssignmentType]
    return values, push_back(direction), beside


def partials(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of an elementwise function f, its slope E[f'] and curvature E[f''].

    E[f'] = d E[f] / d mean, and E[f''] = 2 d E[f] / d var (the heat equation): one backward pass.
    """
    out_mean, pull, out_var = torch.func.vjp(function, mean, var, has_aux=True)  # pyright: ignore[reportAssignmentType]
    slope, by_var = pull(torch.ones_like(out_mean))
    return out_mean, out_var, slope, 2 * by_var
