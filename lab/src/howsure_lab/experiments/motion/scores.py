"""The metrics of Table II on the object, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from howsure import metrics
from howsure_lab.experiments.scores import FLOOR
from howsure_lab.experiments.tables import Column

# Added to all fitted variances, in pixels**2: the flow of an object that only shifts has none.
_SPREAD = 0.1**2

MOTION = (
    Column("epe", "EPE", 2),
    Column("kl", "KL", 1),
    Column("nll", "NLL", 2),
    Column("rank", "rank", 2),
    Column("coverage", "coverage 95 %", 2),
    Column("std", "mean std", 2),
    Column("auroc", "AUROC", 2),
)


def object_scores(
    mean: Tensor,  # (objects, 2, points, 1)
    var: Tensor,  # likewise
    target: Tensor,  # likewise
) -> dict[str, float]:
    """All metrics of predicted flows with total variance `var`, in pixels."""
    full = float(metrics.nll(mean, var, target, floor=FLOOR, include_constant=True))
    return {
        "epe": float(metrics.epe(mean, target)),
        "kl": float(fitted_kl(mean, target).mean()),
        "nll": full,
        "nll_without_constant": float(metrics.nll(mean, var, target, floor=FLOOR)),
        "rank": _rank(object_variance(var), (target - mean).norm(dim=1).mean((1, 2))),
        "coverage": float(metrics.coverage(mean, var, target, level=0.95)),
        "std": float(var.sqrt().mean()),
        "count": len(target),
    }


def fitted_kl(mean: Tensor, target: Tensor) -> Tensor:  # (objects,)
    """KL(true || predicted) of Gaussians fitted to each object's flow vectors, in nats.

    The paper states neither the direction, nor the form of the covariance, nor what it does with
    objects that only shift; here the covariance is full and has (0.1 pixels)**2 added.
    """
    true, predicted = (_fitted(flow.double()) for flow in (target, mean))
    return kl_divergence(true, predicted)


def _fitted(flow: Tensor) -> MultivariateNormal:
    vectors = flow.flatten(2).transpose(1, 2)  # (objects, points, 2)
    center = vectors.mean(1, keepdim=True)
    covariance = (vectors - center).transpose(1, 2) @ (vectors - center) / vectors.shape[1]
    spread = _SPREAD * torch.eye(2, dtype=flow.dtype)
    return MultivariateNormal(center.squeeze(1), covariance + spread)


def object_variance(var: Tensor) -> Tensor:  # (objects,)
    """The mean predicted variance on each object."""
    return var.flatten(1).mean(1)


def told_apart(variances: Mapping[str, Tensor]) -> dict[str, float]:
    """AUROC of each kind of objects against the first, by their mean predicted variance."""
    first, *others = variances
    inside = object_variance(variances[first])
    found = {}
    for kind in others:
        outside = object_variance(variances[kind])
        both = torch.cat([inside, outside])
        same = bool((both - both[0]).abs().max() <= 1e-6 * both[0])
        found[kind] = 0.5 if same else float(metrics.out_of_distribution_auroc(inside, outside))
    return found


def _rank(var: Tensor, error: Tensor) -> float:
    """Rank correlation over objects; a constant variance tells nothing, so it has 0."""
    if bool((var - var[0]).abs().max() <= 1e-6 * var[0]):
        return 0.0
    return float(metrics.rank_correlation(var, error))
