"""The weights of a variance's terms that are best for held-out errors, by likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.student import student_nll

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
    given = torch.where(fixed.isnan(), 0.0, fixed)
    if not bool(free.any()):
        return given
    scaled = terms[:, free] / size[free]
    precision = torch.zeros_like(size) if log_std is None else log_std**-2 / len(error)
    likelihood = _Likelihood(error, scaled, terms @ given, size[free].log(), precision[free])
    level = math.log(max(float(error.mean()), torch.finfo(error.dtype).tiny))
    weights = _descend(likelihood, _starts(scaled) + level).exp()
    weights = torch.where(weights > _NOTHING * weights.sum(), weights, 0.0) / size[free]
    return given.masked_scatter(free, weights)


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """The mean NLL as a function of the logarithms of the weights, with what is known of these.

    Attributes:
        error: Squared errors, (inputs,).
        scaled: Terms of mean 1, (inputs, terms).
        base: What the weights that are given make, (inputs,).
        center: Logarithms of the weights where these are 1 for the terms as they are, (terms,).
        precision: Their inverse variance, for each input, (terms,); 0 where nothing is known.
    """

    error: Tensor
    scaled: Tensor
    base: Tensor
    center: Tensor
    precision: Tensor

    def at(self, logs: Tensor) -> Tensor:  # (starts, terms) -> (starts,)
        """The mean NLL, with the cost of what is known; infinite where it is not defined."""
        loss = student_nll(self.error, self.base + logs.exp() @ self.scaled.mT, math.inf).mean(1)
        loss = loss + 0.5 * ((logs - self.center).square() @ self.precision)
        return loss.nan_to_num(nan=math.inf, posinf=math.inf)

    def newton(self, logs: Tensor) -> tuple[Tensor, Tensor]:  # (starts, terms), (starts,)
        """The steps in the logarithms, and the largest slope of each start.

        Where the likelihood curves the wrong way, the size of its curvature counts.
        """
        error, scaled, weights = self.error, self.scaled, logs.exp()
        var = self.base + weights @ scaled.mT  # (starts, inputs)
        first = 0.5 * (1 - error / var) / var / len(error)
        second = 0.5 * (2 * error / var - 1) / var.square() / len(error)
        slopes = weights * (first @ scaled)
        curvature = torch.einsum("sn,ni,nj->sij", second, scaled, scaled)
        curvature = curvature * weights[:, :, None] * weights[:, None, :]
        curvature = curvature + torch.diag_embed(slopes + self.precision)
        slopes = slopes + (logs - self.center) * self.precision
        values, axes = torch.linalg.eigh(curvature.nan_to_num(0, 0, 0))
        along = (axes.mT @ slopes.nan_to_num(0, 0, 0)[:, :, None])[:, :, 0]
        down = -along / values.abs().clamp(min=torch.finfo(values.dtype).tiny)
        step = (axes @ down[:, :, None])[:, :, 0]
        longest = step.abs().amax(1, keepdim=True)
        return step * (_LONGEST / longest.clamp(min=_LONGEST)), slopes.abs().amax(1)


def _starts(scaled: Tensor) -> Tensor:
    """Equal shares, and each term by itself: the likelihood can have several valleys."""
    count = scaled.shape[1]
    alone = torch.eye(count, dtype=scaled.dtype) * (1 - 0.02 * count) + 0.02
    equal = torch.full((1, count), 1 / count, dtype=scaled.dtype)
    return torch.cat([equal, alone]).log().to(scaled.device)


def _descend(likelihood: _Likelihood, logs: Tensor) -> Tensor:  # (starts, terms) -> (terms,)
    """Logarithms of the weights in the deepest valley that Newton's method finds.

    It goes down from all starts together; a step is halved until it leads down.
    """
    loss = likelihood.at(logs)
    for _ in range(_MOST_STEPS):
        step, slope = likelihood.newton(logs)
        tried = likelihood.at(logs + step)
        for _ in range(_HALVINGS):
            is_higher = ~(tried < loss) & (slope > _FLAT)
            if not bool(is_higher.any()):
                break
            step = torch.where(is_higher[:, None], step / 2, step)
            tried = likelihood.at(logs + step)
        moves = (tried < loss) & (slope > _FLAT)
        if not bool(moves.any()):
            break
        logs, loss = torch.where(moves[:, None], logs + step, logs), torch.where(moves, tried, loss)
    return logs[loss.argmin()]
