"""The weights of a variance's terms that are best for held-out errors, by likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A weight whose share of the variance is below this counts as 0.
_NOTHING = 1e-9
# Steps of Newton's method, at most; a weight that is going to vanish loses a factor of e in each.
_MOST_STEPS = 60
_HALVINGS = 20
# The longest step in the logarithm of a weight: beyond a factor of e^2 no parabola holds.
_LONGEST = 2.0
# The slope of the NLL in the logarithms at which it counts as flat: it is that close to its least.
_FLAT = 1e-7


def best_weights(
    error: Tensor, terms: Tensor, fixed: Tensor, log_std: Tensor | None = None
) -> Tensor:
    """Weights >= 0 that minimize the mean of 1/2 log v + e^2 / (2 v), v = sum_j w_j t_j.

    Args:
        error: Squared errors, (inputs,), in double precision.
        terms: (inputs, terms), not negative.
        fixed: Weights that are given, (terms,); NaN for those to find.
        log_std: Where a weight is known to be about 1: the std of its logarithm, (terms,), which
            makes the result the most probable one. Infinity where nothing is known, the default.
    """
    size = terms.mean(0)
    free = fixed.isnan() & (size > 0)
    base = terms @ torch.where(fixed.isnan(), 0.0, fixed)
    if not bool(free.any()):
        return torch.where(fixed.isnan(), 0.0, fixed)
    scaled = terms[:, free] / size[free]
    level = math.log(max(float(error.mean()), torch.finfo(error.dtype).tiny))
    precision = torch.zeros_like(size) if log_std is None else log_std**-2 / len(error)
    prior = _Prior(size[free].log(), precision[free])
    weights = _descend(error, scaled, base, prior, _starts(scaled) + level).exp()
    weights = torch.where(weights > _NOTHING * weights.sum(), weights, 0.0) / size[free]
    return torch.where(fixed.isnan(), 0.0, fixed).masked_scatter(free, weights)


@dataclass(frozen=True, eq=False)
class _Prior:
    """What is known of the logarithms of the weights, in the units of the scaled terms.

    Attributes:
        center: Where a weight is 1, (terms,).
        precision: Inverse variance, for each input, (terms,); 0 where nothing is known.
    """

    center: Tensor
    precision: Tensor

    def cost(self, logs: Tensor) -> Tensor:  # (starts, terms) -> (starts,)
        """What the prior adds to the mean NLL."""
        return 0.5 * ((logs - self.center).square() @ self.precision)

    def slopes(self, logs: Tensor) -> Tensor:
        """The slopes of that cost, (starts, terms)."""
        return (logs - self.center) * self.precision


def _starts(scaled: Tensor) -> Tensor:
    """Equal shares, and each term by itself: the likelihood can have several valleys."""
    count = scaled.shape[1]
    alone = torch.eye(count, dtype=scaled.dtype) * (1 - 0.02 * count) + 0.02
    equal = torch.full((1, count), 1 / count, dtype=scaled.dtype)
    return torch.cat([equal, alone]).log().to(scaled.device)


def _descend(error: Tensor, scaled: Tensor, base: Tensor, prior: _Prior, logs: Tensor) -> Tensor:
    """Logarithms of the weights in the deepest valley that Newton's method finds, (terms,).

    It goes down from all starts together, (starts, terms). Where the likelihood curves the wrong
    way, the size of its curvature counts; a step is halved until it leads down.
    """

    def at(tried: Tensor) -> Tensor:  # (starts,)
        loss = 0.5 * _log_and_ratio(error, base + tried.exp() @ scaled.mT).mean(1)
        loss = loss + prior.cost(tried)
        return loss.nan_to_num(nan=math.inf, posinf=math.inf)

    loss = at(logs)
    for _ in range(_MOST_STEPS):
        step, slope = _newton(error, scaled, base, prior, logs)
        for _ in range(_HALVINGS):
            is_higher = ~(at(logs + step) < loss) & (slope > _FLAT)
            if not bool(is_higher.any()):
                break
            step = torch.where(is_higher[:, None], step / 2, step)
        tried = at(logs + step)
        moves = (tried < loss) & (slope > _FLAT)
        if not bool(moves.any()):
            break
        logs, loss = torch.where(moves[:, None], logs + step, logs), torch.where(moves, tried, loss)
    return logs[loss.argmin()]


def _newton(
    error: Tensor, scaled: Tensor, base: Tensor, prior: _Prior, logs: Tensor
) -> tuple[Tensor, Tensor]:  # (starts, terms), (starts,)
    """The steps in the logarithms of the weights, and the largest slope of each start."""
    weights = logs.exp()
    var = base + weights @ scaled.mT  # (starts, inputs)
    first = 0.5 * (1 - error / var) / var / len(error)
    second = 0.5 * (2 * error / var - 1) / var.square() / len(error)
    slopes = weights * (first @ scaled)
    curvature = torch.einsum("sn,ni,nj->sij", second, scaled, scaled)
    curvature = curvature * weights[:, :, None] * weights[:, None, :]
    curvature = curvature + torch.diag_embed(slopes + prior.precision)
    slopes = slopes + prior.slopes(logs)
    values, axes = torch.linalg.eigh(curvature.nan_to_num(0, 0, 0))
    along = (axes.mT @ slopes.nan_to_num(0, 0, 0)[:, :, None])[:, :, 0]
    down = -along / values.abs().clamp(min=torch.finfo(values.dtype).tiny)
    step = (axes @ down[:, :, None])[:, :, 0]
    longest = step.abs().amax(1, keepdim=True)
    return step * (_LONGEST / longest.clamp(min=_LONGEST)), slopes.abs().amax(1)


def nll(error: Tensor, var: Tensor) -> Tensor:
    """The mean of 1/2 log v + e^2 / (2 v), without 1/2 log 2 pi."""
    return 0.5 * _log_and_ratio(error, var).mean()


def _log_and_ratio(error: Tensor, var: Tensor) -> Tensor:
    return var.log() + error / var
