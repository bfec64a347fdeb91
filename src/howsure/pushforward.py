"""Directions pushed through a function: J d for many directions d at once, by forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Takes the primals; returns the tensors to differentiate, and others that are only evaluated.
Function = Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]


def push(
    function: Function, primals: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The function's values, J d for every direction d in front, and the values beside.

    The values are computed once: only the derivatives are batched.
    """

    def one(*direction: Tensor) -> Any:
        return torch.func.jvp(function, tuple(primals), direction, has_aux=True)

    try:
        values, pushed, beside = torch.vmap(one, out_dims=(None, 0, None))(*directions)
    except (RuntimeError, ValueError):
        # Operations that write in place cannot be batched; one by one they can be pushed.
        rows = [one(*(d[k] for d in directions)) for k in range(directions[0].shape[0])]
        values, beside = rows[0][0], rows[0][2]
        pushed = tuple(torch.stack(column) for column in zip(*(r[1] for r in rows), strict=True))
    return values, pushed, beside


def partials(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    mean: Tensor,
    var: Tensor,
    *,
    curvature: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Mean and variance of an elementwise function, its slope E[f'], and E[f''] if asked for.

    E[f'] = d E[f] / d mean, and E[f''] = 2 d E[f] / d var (the heat equation).
    """

    def split(m: Tensor, v: Tensor) -> tuple[tuple[Tensor], tuple[Tensor]]:
        out_mean, out_var = function(m, v)
        return (out_mean,), (out_var,)

    along_mean = [torch.ones_like(mean), torch.zeros_like(mean)][: 1 + curvature]
    along_var = [torch.zeros_like(var), torch.ones_like(var)][: 1 + curvature]
    (out_mean,), (slopes,), (out_var,) = push(
        split, (mean, var), (torch.stack(along_mean), torch.stack(along_var))
    )
    return out_mean, out_var, slopes[0], 2 * slopes[1] if curvature else None
