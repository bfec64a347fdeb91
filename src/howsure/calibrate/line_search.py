"""The minimum of smooth functions of one positive number, for several functions at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_GOLDEN = (5**0.5 - 1) / 2


def log_minimum(
    cost: Callable[[Tensor], Tensor],  # (k,) -> (k,)
    low: float,
    high: float,
    *,
    per_decade: int = 4,
    steps: int = 36,
) -> Tensor:
    """Where each of k functions is smallest between `low` and `high`, (k,).

    The best of a log-spaced grid, then golden-section search between its neighbours. The grid is
    there because a likelihood need not be unimodal. 36 steps leave about 1e-7 of the bracket,
    below which differences of the cost drown in rounding.
    """
    count = round(math.log10(high / low) * per_decade) + 1
    logs = torch.linspace(math.log(low), math.log(high), count, dtype=torch.float64)
    best = torch.stack([_finite(cost(x.exp().reshape(1))) for x in logs]).argmin(0)
    before, after = (best - 1).clamp(min=0), (best + 1).clamp(max=count - 1)
    return _golden(cost, logs[before], logs[after], steps)


def log_polished(cost: Callable[[float], float], start: float, *, width: float = 0.2) -> float:
    """The minimum near `start`, by parabolas through three points that draw together.

    For a cost that takes seconds: 12 evaluations leave a relative error of about 1e-5, from a
    start that is off by up to a third.
    """
    at = math.log(start)
    for _ in range(4):
        low, middle, high = (cost(math.exp(at + side * width)) for side in (-1, 0, 1))
        curvature, slope = low - 2 * middle + high, (low - high) / 2
        step = width * slope / curvature if curvature > 0 else math.copysign(2 * width, slope)
        at += min(max(step, -2 * width), 2 * width)
        width /= 3
    return math.exp(at)


def _golden(cost: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int) -> Tensor:
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = _finite(cost(left.exp())), _finite(cost(right.exp()))
    for _ in range(steps):
        down = at_left < at_right
        low, high = torch.where(down, low, left), torch.where(down, right, high)
        width = _GOLDEN * (high - low)
        new = torch.where(down, high - width, low + width)
        at_new = _finite(cost(new.exp()))
        left, right = torch.where(down, new, right), torch.where(down, left, new)
        at_left, at_right = (
            torch.where(down, at_new, at_right),
            torch.where(down, at_left, at_new),
        )
    return torch.exp((low + high) / 2)


def _finite(values: Tensor) -> Tensor:
    """What is not defined is worse than all else."""
    return torch.where(torch.isfinite(values), values, torch.inf)
