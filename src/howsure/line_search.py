"""The minimum of smooth functions of one positive number, for several functions at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Cost = Callable[[Tensor], Tensor]  # (k,) -> (k,)


# Minima of a grid that are refined.
_MOST = 2


def log_minimum(
    cost: Cost, low: float, high: float, *, per_decade: int = 4, last_width: float = 1e-4
) -> Tensor:  # (k,)
    """Where each of k functions is smallest between `low` and `high`.

    The lowest two minima of a log-spaced grid, then parabolas, and the lower of both: a likelihood
    need not be unimodal, and a grid does not tell which minimum is the lower one. At a last width
    of 1e-4, rounding moves the vertex of a parabola by about 1e-11.
    """
    count = round(math.log10(high / low) * per_decade) + 1
    grid = torch.logspace(math.log10(low), math.log10(high), count, dtype=torch.float64)
    costs = torch.stack([_finite(cost(x[None])) for x in grid])
    beyond = torch.full_like(costs[:1], torch.inf)
    below_left = costs < torch.cat([beyond, costs[:-1]])
    below_right = costs <= torch.cat([costs[1:], beyond])
    lowest, places = torch.where(below_left & below_right, costs, torch.inf).sort(dim=0)
    # A function with one minimum, or none, has the lowest point of its grid in place of others.
    places = torch.where(lowest.isfinite(), places, costs.argmin(0))
    several = int(lowest.isfinite().sum(0).max().clamp(1, _MOST))
    width = math.log(10) / per_decade
    rounds = math.ceil(math.log(width / last_width, 3)) + 1
    minima = torch.stack(
        [
            log_refine(cost, grid[place], width=width, rounds=rounds).clamp(low, high)
            for place in places[:several]
        ]
    )
    if several == 1:
        return minima[0]
    best = torch.stack([_finite(cost(minimum)) for minimum in minima]).argmin(0, keepdim=True)
    return minima.gather(0, best)[0]


def log_refine(
    cost: Cost,
    start: Tensor,  # (k,)
    *,
    width: float,
    rounds: int,
) -> Tensor:  # (k,)
    """The minima near `start`, by parabolas through three points that draw together.

    Three evaluations a round. Four rounds from a width of 0.2 leave a relative error of about
    1e-5, from a start that is off by up to a third.
    """
    at = start.double().log()
    for _ in range(rounds):
        left, middle, right = (_finite(cost((at + side * width).exp())) for side in (-1, 0, 1))
        slope, curvature = (left - right) / 2, left - 2 * middle + right
        is_bowl = (curvature > 0) & curvature.isfinite()
        vertex = slope / torch.where(is_bowl, curvature, 1.0)
        # Where there is no vertex: downhill, unless a side is undefined and the middle the lowest.
        is_lowest = (middle <= left) & (middle <= right)
        downhill = torch.where(is_lowest, 0.0, 2 * torch.sign(slope.nan_to_num()))
        at = at + width * torch.where(is_bowl, vertex.clamp(-2, 2), downhill)
        width /= 3
    return at.exp()


def _finite(values: Tensor) -> Tensor:
    """The costs on the CPU, where the search is; one that is not defined is worse than all."""
    return torch.where(values.isfinite(), values, torch.inf).cpu()
