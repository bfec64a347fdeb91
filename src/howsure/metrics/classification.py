"""How good predicted classes and their confidences are: likelihoods, Brier score, ECE and ACE.

Shapes are those of `torch.nn.functional.cross_entropy`: classes at dimension 1, targets are
class indices without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import bin_count, classes, positive_variance, share
from howsure.metrics.ranks import binned_means
from howsure.metrics.regression import HALF_LOG_2PI
from howsure.metrics.streaming import Sums, mean_over, summary_over, values_over
from howsure.student import student_nll

Reduction = Literal["mean", "sum", "none"]
# Rows whose numbers for all classes stay in the cache of a processor.
_BLOCK = 8192


@mean_over(classes)
def accuracy(
    scores: Tensor,  # (batch, classes, ...), probabilities or logits
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Tensor:
    """Fraction of predictions whose largest score is at the true class.

    Examples:
        >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
        >>> hs.metrics.accuracy(scores, torch.tensor([0, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    return (scores.argmax(1) == target).to(scores)


@mean_over(classes)
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
) -> Tensor:
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

    Examples:
        >>> p, target = torch.tensor([[0.8, 0.2]]), torch.tensor([0])
        >>> hs.metrics.one_hot_nll(p, torch.full((1, 2), 0.01), target)
        tensor(-0.3026, dtype=torch.float64)
    """

    def score(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
        nll = student_nll(_residuals(mean, target).square(), var, math.inf)
        return _over_classes(nll + HALF_LOG_2PI if include_constant else nll, reduction)

    return _by_blocks(score, mean, positive_variance(var, floor), target)


@mean_over(classes)
def categorical_nll(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    floor: float = 0.0,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Tensor:
    """Mean of -log of the probability of the true class, in nats.

    Args:
        probabilities: Rows that sum to 1.
        target: True class.
        floor: Probabilities below are raised to it. The default raises none, and a true class of
            probability 0 is an error. State the floor with the number.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.

    Examples:
        >>> p, target = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
        >>> hs.metrics.categorical_nll(p, target)  # log 2
        tensor(0.6931, dtype=torch.float64)
    """
    of_truth = probabilities.gather(1, target.unsqueeze(1)).squeeze(1).clamp(min=floor)
    impossible = of_truth == 0
    if impossible.any():
        raise ValueError(
            f"The true class has probability 0 in {share(impossible)} rows, whose likelihood is "
            "infinite; pass `floor=...` and state that floor with the number."
        )
    return -of_truth.log()


@mean_over(classes)
def brier(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    reduction: Reduction = "mean",
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Tensor:
    """Brier score: mean of ([target = k] - p_k)^2.

    Args:
        probabilities: Rows that sum to 1.
        target: True class.
        reduction: Over classes: `"mean"` as in the code of Loquercio et al. (2020), `"sum"` as in
            Brier (1950), which is larger by the number of classes, or `"none"` for each class.
        mask: False entries do not count and may be NaN.
        weight: How much each entry counts.

    Examples:
        >>> p, target = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
        >>> hs.metrics.brier(p, target)
        tensor(0.2500, dtype=torch.float64)
    """

    def score(probabilities: Tensor, target: Tensor) -> Tensor:
        return _over_classes(_residuals(probabilities, target).square(), reduction)

    return _by_blocks(score, probabilities, target)


class ReliabilityCurve(NamedTuple):
    """Confidence against accuracy per bin; NaN where a bin is empty.

    Examples:
        >>> p, target = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])
        >>> curve = hs.metrics.reliability_curve(p, target, bins=2)
        >>> curve.confidence  # the lower bin is empty
        tensor([   nan, 0.9000], dtype=torch.float64)
    """

    confidence: Tensor  # (bins,)
    accuracy: Tensor  # (bins,)
    fraction: Tensor  # (bins,), share of the predictions


def _curve(sums: Sums) -> ReliabilityCurve:
    confidence, accuracy = sums.mean()
    return ReliabilityCurve(confidence, accuracy, sums.weight / sums.weight.sum())


def _expected_gap(sums: Sums) -> Tensor:
    confidence, correct = sums.total
    return (confidence - correct).abs().sum() / sums.weight.sum()


def _decisions(probabilities: Tensor, target: Tensor, bins: int) -> tuple[Tensor, Tensor, int]:
    """Confidence and correctness of each decision, and the number of bins."""
    confidence, choice = probabilities.max(1)
    return confidence, (choice == target).to(confidence), bin_count(bins)


def _sum_bins(decisions: tuple[Tensor, Tensor, int], weight: Tensor) -> Sums:
    """Confidence and correctness summed in each bin, and the weight of the bin."""
    confidence, correct, bins = decisions
    edges = torch.linspace(0, 1, bins + 1, dtype=weight.dtype, device=weight.device)
    place = torch.bucketize(confidence, edges[1:-1])
    promised, observed, in_bin = (
        torch.bincount(place, weights=weight * value, minlength=bins)
        for value in (confidence, correct, torch.ones_like(weight))
    )
    return Sums(torch.stack([promised, observed]), in_bin)


@summary_over(classes, Sums, _curve, _sum_bins)
def reliability_curve(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    bins: int = 15,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> tuple[Tensor, Tensor, int]:
    """Mean confidence and accuracy of the predicted class, in bins of equal width.

    Bin k holds the confidences in (k / bins, (k + 1) / bins]. Guo et al. (2017).

    Examples:
        >>> p, target = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])
        >>> hs.metrics.reliability_curve(p, target, bins=2).accuracy
        tensor([   nan, 0.5000], dtype=torch.float64)
    """
    return _decisions(probabilities, target, bins)


@summary_over(classes, Sums, _expected_gap, _sum_bins)
def ece(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    bins: int = 15,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> tuple[Tensor, Tensor, int]:
    """Expected calibration error: sum over bins of their share times |accuracy - confidence|.

    See `reliability_curve` for the bins. Guo et al. (2017).

    Examples:
        >>> p, target = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])
        >>> hs.metrics.ece(p, target)  # 90 % sure, 50 % right
        tensor(0.4000, dtype=torch.float64)
    """
    return _decisions(probabilities, target, bins)


@values_over(classes)
def ace(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    bins: int = 15,
    mask: Tensor | None = None,  # (batch, ...), bool
) -> Tensor:
    """Adaptive calibration error: mean over classes and bins of |frequency - probability|.

    For every class, bins of equal count along its probability. Entries of equal probability share
    their frequency, so that their order does not matter. Nixon et al. (2019).

    Examples:
        >>> p, target = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1])
        >>> hs.metrics.ace(p, target, bins=1)
        tensor(0., dtype=torch.float64)
    """
    bin_count(bins, len(target))
    gaps = []
    for k, column in enumerate(probabilities.T.contiguous()):
        promised, observed = binned_means(column, (target == k).to(column), bins)
        gaps.append((observed - promised).abs())
    return torch.stack(gaps).mean()


def _by_blocks(
    score: Callable[..., Tensor],  # (block, ...) of each column to (block, ...)
    *columns: Tensor,  # (n, ...)
) -> Tensor:  # (n, ...)
    """The scores of all rows, by blocks, so that what has a number for every class stays small."""
    blocks = zip(*(column.split(_BLOCK) for column in columns), strict=True)
    return torch.cat([score(*block) for block in blocks])


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
