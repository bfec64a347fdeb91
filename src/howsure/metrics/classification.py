"""How good predicted classes and their confidences are: likelihoods, Brier score, ECE and ACE.

Shapes are those of `torch.nn.functional.cross_entropy`: classes at dimension 1, targets are
class indices without it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import bin_count, classes, positive_variance, share
from howsure.metrics.ranks import sorted_values
from howsure.metrics.scores import gaussian_nll
from howsure.metrics.streaming import Sums, kept, streamed

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
    scores, target, weight = classes(mask, weight, scores=scores, target=target)
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
    mean, var, target, weight = classes(mask, weight, mean=mean, var=var, target=target)

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
    rows, target, weight = classes(mask, weight, probabilities=probabilities, target=target)
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
    rows, target, weight = classes(mask, weight, probabilities=probabilities, target=target)

    def score(rows: Tensor, target: Tensor) -> Tensor:
        return _over_classes(_residuals(rows, target).square(), reduction)

    return Sums.over(score, weight, rows, target)


class ReliabilityCurve(NamedTuple):
    """Confidence against accuracy per bin; NaN where a bin is empty."""

    confidence: Tensor  # (bins,)
    accuracy: Tensor  # (bins,)
    fraction: Tensor  # (bins,), share of the predictions


def _as_curve(sums: Sums) -> ReliabilityCurve:
    confidence, accuracy = sums.mean()
    return ReliabilityCurve(confidence, accuracy, sums.weight / sums.weight.sum())


@streamed(Sums, _as_curve)
def reliability_curve(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    bins: int = 15,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Mean confidence and accuracy of the predicted class, in bins of equal width.

    Bin k holds the confidences in (k / bins, (k + 1) / bins]. Guo et al. (2017).
    """
    rows, target, weight = classes(mask, weight, probabilities=probabilities, target=target)
    return _binned(rows, target, weight, bins)


def _expected_gap(sums: Sums) -> Tensor:
    confidence, correct = sums.total
    return (confidence - correct).abs().sum() / sums.weight.sum()


@streamed(Sums, _expected_gap)
def ece(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    bins: int = 15,
    mask: Tensor | None = None,  # (batch, ...), bool
    weight: Tensor | None = None,  # (batch, ...)
) -> Sums:
    """Expected calibration error: sum over bins of their share times |accuracy - confidence|.

    See `reliability_curve` for the bins. Guo et al. (2017).
    """
    rows, target, weight = classes(mask, weight, probabilities=probabilities, target=target)
    return _binned(rows, target, weight, bins)


@kept(classes)
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
    """
    rows, target, _ = classes(mask, probabilities=probabilities, target=target)
    bin_count(bins, len(rows))
    gaps = [_gaps(column, target == k, bins) for k, column in enumerate(rows.T)]
    return torch.stack(gaps).mean()


def _gaps(
    probability: Tensor,  # (n,)
    happened: Tensor,  # (n,), bool
    bins: int,
) -> Tensor:  # (bins,)
    """|frequency - probability| of one class in bins of equal count."""
    ordered = sorted_values(probability)
    promised = torch.stack([part.sum() for part in ordered.tensor_split(bins)])
    sizes = torch.tensor([len(part) for part in ordered.tensor_split(bins)]).to(ordered.device)
    observed = _happened_before(sizes.cumsum(0), ordered, sorted_values(probability[happened]))
    return (observed.diff(prepend=observed.new_zeros(1)) - promised).abs() / sizes


def _happened_before(
    ends: Tensor,  # (bins,)
    ordered: Tensor,  # (n,), ascending
    happened: Tensor,  # (m,), ascending, those among `ordered` whose class is true
) -> Tensor:  # (bins,)
    """How many of the first `end` happened; of tied entries the share that lies before `end`."""
    edge = ordered[ends - 1]
    first, last = (torch.searchsorted(ordered, edge, right=side) for side in (False, True))
    below, up_to = (torch.searchsorted(happened, edge, right=side) for side in (False, True))
    return below + (up_to - below) * (ends - first) / (last - first).to(ordered)


def _binned(
    rows: Tensor,  # (n, classes)
    target: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    bins: int,
) -> Sums:
    """Confidence and correctness summed in each bin, and the weight of the bin."""
    confidence, choice = rows.max(1)
    edges = torch.linspace(
        0, 1, bin_count(bins) + 1, dtype=confidence.dtype, device=confidence.device
    )
    place = torch.bucketize(confidence, edges[1:-1])
    correct = (choice == target).to(confidence)
    in_bin, promised, observed = (
        torch.bincount(place, weights=weight * value, minlength=bins)
        for value in (torch.ones_like(confidence), confidence, correct)
    )
    return Sums(torch.stack([promised, observed]), in_bin)


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
