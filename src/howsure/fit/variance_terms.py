"""The weights of a variance's terms that are best for held-out errors, by likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A weight whose share of the variance is below this counts as 0.
_NOTHING = 1e-9


def best_weights(error: Tensor, terms: Tensor, fixed: Tensor) -> Tensor:
    """Weights >= 0 that minimise the mean of 1/2 log v + e^2 / (2 v), v = sum_j w_j t_j.

    Args:
        error: Squared errors, (inputs,), in double precision.
        terms: (inputs, terms), not negative.
        fixed: Weights that are given, (terms,); NaN for those to find.
    """
    size = terms.mean(0)
    free = fixed.isnan() & (size > 0)
    base = terms @ torch.where(fixed.isnan(), 0.0, fixed)
    if not bool(free.any()):
        return torch.where(fixed.isnan(), 0.0, fixed)
    scaled = terms[:, free] / size[free]
    start = math.log(max(float(error.mean()), torch.finfo(error.dtype).tiny))
    found = min((_descent(error, scaled, base, start, s) for s in _starts(scaled)), key=_nll_of)
    weights = found[0].exp()
    weights = torch.where(weights > _NOTHING * weights.sum(), weights, 0.0) / size[free]
    return torch.where(fixed.isnan(), 0.0, fixed).masked_scatter(free, weights)


def _starts(scaled: Tensor) -> Tensor:
    """Equal shares, and each term by itself: the likelihood can have several valleys."""
    count = scaled.shape[1]
    alone = torch.eye(count, dtype=scaled.dtype) * (1 - 0.02 * count) + 0.02
    return torch.cat([torch.full((1, count), 1 / count, dtype=scaled.dtype), alone]).log()


def _nll_of(found: tuple[Tensor, float]) -> float:
    return found[1]


def _descent(
    error: Tensor, scaled: Tensor, base: Tensor, level: float, shares: Tensor
) -> tuple[Tensor, float]:
    """Logarithms of the weights, and the NLL that they reach."""
    logs = (shares + level).requires_grad_()
    search = torch.optim.LBFGS([logs], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        loss = nll(error, base + scaled @ logs.exp())
        loss.backward()
        return loss

    with torch.enable_grad():
        search.step(closure)
    value = float(nll(error, base + scaled @ logs.detach().exp()))
    return logs.detach(), value if math.isfinite(value) else math.inf


def nll(error: Tensor, var: Tensor) -> Tensor:
    """The mean of 1/2 log v + e^2 / (2 v), without 1/2 log 2 pi."""
    return 0.5 * (var.log() + error / var).mean()
