"""How good the point predictions are, of numbers and of vectors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from howsure.metrics.checks import entries, vectors
from howsure.metrics.streaming import Scatter, Sums, streamed


@streamed(Sums, Sums.root_mean)
def rmse(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
    weight: Tensor | None = None,  # (...)
) -> Sums:
    """Root mean squared error over all entries: sqrt(mean((target - mean)^2))."""
    mean, target, weight = entries(mask, weight, mean=mean, target=target)
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
    mean, target, weight = entries(mask, weight, mean=mean, target=target)
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
    mean, target, weight = entries(mask, weight, mean=mean, target=target)
    return Scatter.of(torch.stack([target - mean, target]).unsqueeze(-1), weight)


Direction = Literal["true||predicted", "predicted||true"]


@streamed(Sums, Sums.mean)
def epe(
    mean: Tensor,  # (..., d, ...), d at `dim`
    target: Tensor,  # like mean
    *,
    dim: int = 1,
    mask: Tensor | None = None,  # (..., ...) or (..., 1, ...), bool
    weight: Tensor | None = None,  # like mask
) -> Sums:
    """Mean end point error: the Euclidean length of target - mean along `dim`."""
    mean, target, weight = vectors(mask, weight, dim=dim, mean=mean, target=target)
    return Sums.of((target - mean).norm(dim=1), weight)


def _kl(fitted: Scatter) -> Tensor:
    """KL(p||q) = 1/2 [tr(Q^-1 P) + d^T Q^-1 d - k + log det Q / det P], d = mean_p - mean_q."""
    p, q = _cholesky(fitted.scatter / fitted.weight)
    shift = (fitted.mean[0] - fitted.mean[1]).unsqueeze(-1)
    # |L^-1 A|^2 is tr(Q^-1 A A^T) for Q = L L^T.
    whitened = torch.linalg.solve_triangular(q, torch.cat([p, shift], dim=1), upper=False)
    log_ratio = 2 * (q.diagonal().log() - p.diagonal().log()).sum()
    return 0.5 * (whitened.square().sum() - len(shift) + log_ratio)


@streamed(Scatter, _kl)
def kl_of_fitted_gaussians(
    mean: Tensor,  # (..., d, ...), d at `dim`
    target: Tensor,  # like mean
    *,
    direction: Direction = "true||predicted",
    dim: int = 1,
    mask: Tensor | None = None,  # (..., ...) or (..., 1, ...), bool
) -> Scatter:
    """KL divergence, in nats, between Gaussians fitted to the true and the predicted vectors.

    Both have a full covariance, fitted by maximum likelihood. Used for flow by Loquercio et al.
    (2020), Table II, who state neither the direction nor the form of the covariance.

    Args:
        mean: Predicted field.
        target: True field.
        direction: `"true||predicted"` is KL(true||predicted), large where the predictions lack
            what truth has; `"predicted||true"` is large where they have what truth lacks.
        dim: Dimension of the vector components.
        mask: False vectors do not count and may be NaN.
    """
    if direction not in ("true||predicted", "predicted||true"):
        raise ValueError(
            f"`direction` is {direction!r}; choose 'true||predicted' or 'predicted||true'."
        )
    mean, target, weight = vectors(mask, dim=dim, mean=mean, target=target)
    first, second = (target, mean) if direction == "true||predicted" else (mean, target)
    return Scatter.of(torch.stack([first, second]), weight)


def _cholesky(
    covariance: Tensor,  # (groups, d, d)
) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factor.diagonal(dim1=1, dim2=2).square()
    # A singular matrix leaves a pivot of rounding errors, a few eps of its diagonal.
    rounding = 64 * torch.finfo(covariance.dtype).eps * covariance.diagonal(dim1=1, dim2=2)
    if failed.any() or (pivots <= rounding).any():
        raise ValueError(
            "The vectors do not span all their components, so a fitted Gaussian has no density; "
            "give more vectors, or leave out a component that is constant or follows from others."
        )
    return factor
