"""The variance of an operation beyond first order, for rules that do not state it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.moments import Moments
from howsure.pushforward import Function, push
from howsure.signs import random_signs, without_batch

_RANDOM_DIRECTIONS = 8
_MOST_ELEMENTS = 64


def estimated_innovation(
    function: Function,  # means to (means of the outputs, anything)
    index: int,
    inputs: Sequence[Moments],
    var: Tensor,
    seed: tuple[int, ...],
) -> Tensor:
    """r = var - (J*J) v for output `index`, at least 0.

    With few elements per input of the batch J is exact. Else (J*J) v is estimated by random
    directions (Hutchinson 1989), whose error in a single element is large; the share of first
    order in the sum over a row is not, and every element gets that share.
    """
    batch = var.shape[0] if var.dim() else 0
    rows = batch > 0 and all(x.mean.dim() and x.mean.shape[0] == batch for x in inputs)
    rows = rows and sum(x.mean[0].numel() for x in inputs) <= _MOST_ELEMENTS
    exact = rows or sum(x.mean.numel() for x in inputs) <= _MOST_ELEMENTS
    directions = _each_element(inputs, rows) if exact else _random(inputs, batch, seed)
    with torch.no_grad():
        _, pushed, _ = push(function, [x.mean.detach() for x in inputs], directions)
        first_order = pushed[index].to(var.dtype).square().sum(0)
        if exact:
            return (var - first_order).clamp(min=0)
        axes = tuple(range(1, var.dim()))
        total, explained = var.sum(axes, keepdim=True), first_order.sum(axes, keepdim=True)
        share = 1 - explained / torch.where(total > 0, total, torch.ones_like(total))
        return var * share.clamp(0, 1)


def _each_element(inputs: Sequence[Moments], rows: bool) -> list[Tensor]:
    """One direction for each element; with `rows` the same ones in all inputs of the batch."""
    shapes = [(1, *x.mean.shape[1:]) if rows else tuple(x.mean.shape) for x in inputs]
    sizes = [math.prod(shape) for shape in shapes]
    like = inputs[0].mean
    parts = torch.eye(sum(sizes), dtype=like.dtype, device=like.device).split(sizes, 1)
    return [
        part.reshape(-1, *shape) * x.var.detach().sqrt().to(x.mean.dtype)
        for part, shape, x in zip(parts, shapes, inputs, strict=True)
    ]


def _random(inputs: Sequence[Moments], batch: int, seed: tuple[int, ...]) -> list[Tensor]:
    count = _RANDOM_DIRECTIONS
    return [
        (x.var.detach() / count).sqrt().to(x.mean.dtype)
        * random_signs(count, without_batch(x.mean.shape, batch), (*seed, i), x.mean)
        for i, x in enumerate(inputs)
    ]
