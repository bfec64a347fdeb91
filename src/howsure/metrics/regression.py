"""How good the point predictions are: RMSE, MAE and explained variance."""

from __future__ import annotations

import torch
from torch import Tensor

from howsure.metrics.checks import points
from howsure.metrics.streaming import streamed
from howsure.metrics.summaries import Scatter, Sums


@streamed(Sums, Sums.root_mean)
def rmse(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Root mean squared error over all entries: sqrt(mean((target - mean)^2))."""
    mean, target, weight = points(mean, target, mask=mask, weight=weight)
    return Sums.of((target - mean).square(), weight)


@streamed(Sums, Sums.mean)
def mae(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Mean absolute error over all entries: mean(|target - mean|)."""
    mean, target, weight = points(mean, target, mask=mask, weight=weight)
    return Sums.of((target - mean).abs(), weight)


def _explained(moments: Scatter) -> Tensor:
    residual, total = moments.scatter.flatten()
    if total == 0:
        raise ValueError(
            "`target` is constant, so there is no variance to explain; report `rmse` instead."
        )
    return 1 - residual / total


@streamed(Scatter, _explained)
def explained_variance(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Scatter:
    """Explained variance (EVA): 1 - Var(target - mean) / Var(target).

    Pooled over all entries: give one output at a time if outputs differ in scale. A constant
    offset of the predictions does not lower it. As in the code of Loquercio et al. (2020), Table I.
    """
    mean, target, weight = points(mean, target, mask=mask, weight=weight)
    return Scatter.of(torch.stack([target - mean, target]).unsqueeze(-1), weight)
