"""Whether the uncertainty puts predictions in the right order: AUROC and rank correlation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from howsure.metrics.checks import classes, detections, pairs
from howsure.metrics.selection import are_tensors
from howsure.metrics.streaming import kept


@kept(detections)
def auroc(
    score: Tensor,  # (...)
    positive: Tensor,  # (...), bool, or 0 and 1
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Probability that a positive has the higher score than a negative; ties count one half.

    The area under the receiver operating characteristic, as Mann-Whitney statistic:
    (sum of the ranks of positives - n+ (n+ + 1) / 2) / (n+ n-). 1/2 is chance.
    """
    score, positive = detections(score, positive, mask=mask)
    ones = positive.sum()
    zeros = len(positive) - ones
    if ones == 0 or zeros == 0:
        raise ValueError(
            f"`positive` is {bool(ones)} everywhere, so there is nothing to separate; give at "
            "least one positive and one negative."
        )
    rank_sum = average_ranks(score) @ positive
    return (rank_sum - ones * (ones + 1) / 2) / (ones * zeros)


def misclassification_auroc(
    uncertainty: Tensor,  # (batch, ...)
    scores: Tensor,  # (batch, classes, ...), probabilities or logits
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,  # (batch, ...), bool
) -> Tensor:
    """AUROC with which the uncertainty separates wrong from right predictions.

    Piece by piece: `auroc.stream()` with `positive = scores.argmax(1) != target`.
    """
    classes(scores, target, mask=mask)
    return auroc(uncertainty, scores.argmax(1) != target, mask=mask)


def out_of_distribution_auroc(
    inside: Tensor,  # (...)
    outside: Tensor,  # (...)
) -> Tensor:
    """AUROC with which the uncertainty detects out-of-distribution data.

    Piece by piece: `auroc.stream()` with `positive` True for data from outside.

    Args:
        inside: Uncertainties of data like the training data.
        outside: Uncertainties of other data.
    """
    are_tensors(inside=inside, outside=outside)
    score = torch.cat([inside.flatten(), outside.flatten()])
    positive = torch.arange(len(score), device=score.device) >= inside.numel()
    return auroc(score, positive)


@kept(pairs)
def rank_correlation(
    first: Tensor,  # (...), for example an uncertainty
    second: Tensor,  # (...), for example an error
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties with average rank."""
    first, second = pairs(first, second, mask=mask)
    ranks = torch.stack([average_ranks(first), average_ranks(second)])
    # The mean rank is known exactly, so a constant has exactly no scatter.
    centred = ranks - (len(first) + 1) / 2
    scatter = centred @ centred.T
    if (scatter.diagonal() == 0).any():
        raise ValueError("`first` or `second` is constant, so it has no ranking; leave it out.")
    return scatter[0, 1] / scatter.diagonal().prod().sqrt()


def average_ranks(
    values: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Ranks from 1; equal values share the mean of their ranks."""
    ordered, order = values.sort()
    positions = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    return torch.empty_like(values).scatter_(0, order, tied_means(ordered, positions))


def sorted_values(
    values: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Values in ascending order, without a gradient."""
    if values.device.type != "cpu":
        return values.detach().sort().values
    # numpy sorts eight times as fast as torch, which also computes the order.
    return torch.from_numpy(np.sort(values.detach().numpy()))


def tied_means(
    keys: Tensor,  # (n,), ascending
    values: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Values, where keys are equal replaced by their mean: the expectation over orders of ties."""
    starts = torch.ones_like(keys, dtype=torch.bool)
    starts[1:] = keys[1:] != keys[:-1]
    if starts.all():
        return values
    group = starts.cumsum(0) - 1
    means = torch.bincount(group, weights=values) / torch.bincount(group)
    return means[group]
