"""Derivatives of rules: directions pushed through a function, and slopes of scalar functions."""

from __future__ import annotations

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

    def one(*direction: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return _reversed_twice(function, tuple(primals), direction)
        return torch.func.jvp(function, tuple(primals), direction, has_aux=True)

    try:
        return torch.vmap(one, out_dims=(None, 0, None))(*directions)
    except (RuntimeError, ValueError):
        # Operations that write in place cannot be batched; one by one they can be pushed.
        rows = [one(*(d[k] for d in directions)) for k in range(directions[0].shape[0])]
        pushed = tuple(torch.stack(column) for column in zip(*(r[1] for r in rows), strict=True))
        return rows[0][0], pushed, rows[0][2]


def _reversed_twice(
    function: Function, primals: tuple[Tensor, ...], direction: tuple[Tensor, ...]
) -> Pushed:
    """J d as the transpose of the transpose: `torch.export` cannot trace forward mode (2.13)."""
    values, pull, beside = torch.func.vjp(function, *primals, has_aux=True)
    zeros = tuple(torch.zeros_like(value) for value in values)
    _, push_back = torch.func.vjp(lambda *cotangents: pull(cotangents), *zeros)
    return values, push_back(direction), beside


def partials(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of an elementwise function f, its slope E[f'] and curvature E[f''].

    E[f'] = d E[f] / d mean, and E[f''] = 2 d E[f] / d var (the heat equation): one backward pass.
    """
    out_mean, pull, out_var = torch.func.vjp(function, mean, var, has_aux=True)
    slope, by_var = pull(torch.ones_like(out_mean))
    return out_mean, out_var, slope, 2 * by_var
