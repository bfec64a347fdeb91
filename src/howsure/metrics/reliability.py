"""Whether confidences mean what they say: reliability curve, ECE and ACE."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import Classes, bin_count, class_probabilities
from howsure.metrics.ranks import sorted_values
from howsure.metrics.streaming import kept, streamed
from howsure.metrics.summaries import Sums


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
    return _binned(class_probabilities(probabilities, target, mask=mask, weight=weight), bins)


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
    return _binned(class_probabilities(probabilities, target, mask=mask, weight=weight), bins)


@kept(class_probabilities)
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
    rows, target, _ = class_probabilities(probabilities, target, mask=mask)
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


def _binned(predicted: Classes, bins: int) -> Sums:
    """Confidence and correctness summed in each bin, and the weight of the bin."""
    confidence, choice = predicted.scores.max(1)
    edges = torch.linspace(
        0, 1, bin_count(bins) + 1, dtype=confidence.dtype, device=confidence.device
    )
    place = torch.bucketize(confidence, edges[1:-1])
    correct = (choice == predicted.target).to(confidence)
    weight, promised, observed = (
        torch.bincount(place, weights=predicted.weight * value, minlength=bins)
        for value in (torch.ones_like(confidence), confidence, correct)
    )
    return Sums(torch.stack([promised, observed]), weight)
