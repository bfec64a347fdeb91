"""How good predicted classes are: accuracy, likelihoods and the Brier score.

Shapes are those of `torch.nn.functional.cross_entropy`: classes at dimension 1, targets are
class indices without it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from howsure.metrics.checks import (
    class_gaussians,
    class_probabilities,
    classes,
    positive_variance,
)
from howsure.metrics.scores import gaussian_nll
from howsure.metrics.selection import share
from howsure.metrics.streaming import streamed
from howsure.metrics.summaries import Sums

Reduction = Literal["mean", "sum", "none"]


@streamed(Sums, Sums.mean)
def accuracy(
    scores: Tensor,  # (batch, classes, ...), probabilities or logits
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Fraction of predictions whose largest score is at the true class."""
    scores, target, weight = classes(scores, target, mask=mask, weight=weight)
    return Sums.of((scores.argmax(1) == target).to(weight), weight)


@streamed(Sums, Sums.mean)
def one_hot_nll(
    mean: Tensor,  # (batch, classes, ...)
    var: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    reduction: Reduction = "mean",
    include_constant: bool = False,
    floor: float = 0.0,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Mean Gaussian NLL of the class probabilities against the one-hot target.

    1/2 log var_k + ([target = k] - mean_k)^2 / (2 var_k), averaged over classes: the "average of
    per-class NLL" of Loquercio et al. (2020), Table III.

    Args:
        mean: Mean of each class probability.
        var: Variance of each class probability.
        target: True class.
        reduction: Over classes: `"mean"`, `"sum"`, or `"none"` for one value per class.
        include_constant: Adds 1/2 log(2 pi) per class.
        floor: As in `nll`. Variances of probabilities come close to 0; state the floor.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.
    """
    mean, var, target, weight = class_gaussians(mean, var, target, mask=mask, weight=weight)

    def score(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
        scores = gaussian_nll(_residuals(mean, target), var, include_constant)
        return _over_classes(scores, reduction)

    return Sums.over(score, weight, mean, positive_variance(var, floor), target)


@streamed(Sums, Sums.mean)
def categorical_nll(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    floor: float = 0.0,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Mean of -log of the probability of the true class, in nats.

    Args:
        probabilities: Rows that sum to 1.
        target: True class.
        floor: Probabilities below are raised to it. The default raises none, and a true class of
            probability 0 is an error. State the floor with the number.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.
    """
    rows, target, weight = class_probabilities(probabilities, target, mask=mask, weight=weight)
    of_truth = rows.gather(1, target.unsqueeze(1)).squeeze(1).clamp(min=floor)
    impossible = of_truth == 0
    if impossible.any():
        raise ValueError(
            f"The true class has probability 0 in {share(impossible)} rows, whose likelihood is "
            "infinite; pass `floor=...` and state that floor with the number."
        )
    return Sums.of(-of_truth.log(), weight)


@streamed(Sums, Sums.mean)
def brier(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    reduction: Reduction = "mean",
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Brier score: mean of ([target = k] - p_k)^2.

    Args:
        probabilities: Rows that sum to 1.
        target: True class.
        reduction: Over classes: `"mean"` as in the code of Loquercio et al. (2020), `"sum"` as in
            Brier (1950), which is larger by the number of classes, or `"none"` for each class.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.
    """
    rows, target, weight = class_probabilities(probabilities, target, mask=mask, weight=weight)

    def score(rows: Tensor, target: Tensor) -> Tensor:
        return _over_classes(_residuals(rows, target).square(), reduction)

    return Sums.over(score, weight, rows, target)


def _residuals(
    rows: Tensor,  # (n, classes)
    target: Tensor,  # (n,)
) -> Tensor:  # (n, classes)
    """Rows less the one-hot target."""
    return rows.scatter_add(1, target.unsqueeze(1), -torch.ones_like(rows[:, :1]))


def _over_classes(score: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return score
    if reduction not in ("mean", "sum"):
        raise ValueError(f"`reduction` is {reduction!r}; choose 'mean', 'sum' or 'none'.")
    return score.mean(1) if reduction == "mean" else score.sum(1)
