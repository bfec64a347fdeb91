"""The variance of an operation beyond first order, for rules that do not state it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.moments import Moments
from howsure.pushforward import Function, push
from howsure.signs import random_signs, without_batch

_DIRECTIONS = 8


def pooled_innovation(
    function: Function,  # means to (means of the outputs, anything)
    index: int,
    inputs: Sequence[Moments],
    var: Tensor,
    seed: tuple[int, ...],
) -> Tensor:
    """r = var - (J*J) v for output `index`, as the same share of every element's variance.

    (J*J) v is estimated by random directions (Hutchinson 1989), whose error in a single element
    is large; the share of first order in the sum over all elements of an input's row is not.
    """
    batch = var.shape[0] if var.dim() else None
    directions = [
        (each.var / _DIRECTIONS).sqrt().to(each.mean.dtype)
        * random_signs(_DIRECTIONS, without_batch(each.mean.shape, batch), (*seed, i), each.mean)
        for i, each in enumerate(inputs)
    ]
    with torch.no_grad():
        _, pushed, _ = push(function, [each.mean.detach() for each in inputs], directions)
        first_order = pushed[index].to(var.dtype).square().sum(0)
        axes = tuple(range(1, var.dim()))
        total = var.sum(axes, keepdim=True) if axes else var
        explained = first_order.sum(axes, keepdim=True) if axes else first_order
        share = 1 - explained / torch.where(total > 0, total, torch.ones_like(total))
        return var * share.clamp(0, 1)
