"""Whether larger predicted variances come with larger errors: binned errors and ENCE."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import bin_count, gaussians
from howsure.metrics.ranks import tied_means
from howsure.metrics.streaming import kept


class SpreadCurve(NamedTuple):
    """Promised against observed errors, from the most to the least certain bin."""

    std: Tensor  # (bins,), sqrt(mean variance)
    rmse: Tensor  # (bins,)


@kept(gaussians)
def spread_curve(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    bins: int = 10,
    mask: Tensor | None = None,  # (...), bool
) -> SpreadCurve:
    """Predicted standard deviation and observed RMSE in bins of equal count, sorted by variance.

    Entries of equal variance share their mean squared error, so that their order does not matter.
    After Levi et al. (2022).
    """
    mean, var, target, _ = gaussians(mean, var, target, mask=mask)
    var, order = var.sort()
    squared = tied_means(var, (target - mean).square()[order])
    bin_count(bins, len(var))
    means = [torch.stack([part.mean() for part in x.tensor_split(bins)]) for x in (var, squared)]
    return SpreadCurve(means[0].sqrt(), means[1].sqrt())


@kept(gaussians)
def ence(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    bins: int = 10,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Expected normalised calibration error: mean over bins of |std - rmse| / std.

    See `spread_curve` for the bins. Levi et al. (2022).
    """
    std, observed = spread_curve(mean, var, target, bins=bins, mask=mask)
    if (std == 0).any():
        raise ValueError(
            "`var` is 0 in a whole bin, where the error relative to it is undefined; raise it with "
            "`var.clamp(min=...)` and state that floor with the number, or use fewer `bins`."
        )
    return ((std - observed).abs() / std).mean()
