"""Whether the uncertainty ranks predictions: AUROC, Spearman, sparsification, risk-coverage.

Sparsification and risk-coverage look at the mean error of the most certain predictions, sorted by
uncertainty: risk(k) = mean of the k smallest-uncertainty errors, k = 1..n. Then AURC = mean of
risk(k) over k, and AUSE is AURC less that of the oracle, which sorts by the error itself.
Predictions of equal uncertainty share their mean error, which is the expectation over their order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import classes, entries
from howsure.metrics.streaming import values_over


@values_over(entries)
def auroc(
    score: Tensor,  # (...)
    positive: Tensor,  # (...), bool, or 0 and 1
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Probability that a positive has the higher score than a negative; ties count one half.

    The area under the receiver operating characteristic, as Mann-Whitney statistic:
    (sum of the ranks of positives - n+ (n+ + 1) / 2) / (n+ n-). 1/2 is chance.

    Examples:
        >>> score = torch.tensor([0.1, 0.4, 0.8])
        >>> hs.metrics.auroc(score, torch.tensor([False, False, True]))
        tensor(1., dtype=torch.float64)
    """
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

    Examples:
        >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
        >>> entropy, target = torch.tensor([0.1, 0.7]), torch.tensor([0, 0])
        >>> hs.metrics.misclassification_auroc(entropy, scores, target)
        tensor(1., dtype=torch.float64)
    """
    classes(mask, scores=scores, target=target)
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

    Examples:
        >>> known, unknown = torch.tensor([0.1, 0.3]), torch.tensor([0.2, 0.9])
        >>> hs.metrics.out_of_distribution_auroc(known, unknown)
        tensor(0.7500, dtype=torch.float64)
    """
    score = torch.cat([inside.flatten(), outside.flatten()])
    positive = torch.arange(len(score), device=score.device) >= inside.numel()
    return auroc(score, positive)


@values_over(entries)
def rank_correlation(
    first: Tensor,  # (...), for example an uncertainty
    second: Tensor,  # (...), for example an error
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties with average rank.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> hs.metrics.rank_correlation(std, error)
        tensor(1., dtype=torch.float64)
    """
    ranks = torch.stack([average_ranks(first), average_ranks(second)])
    # The mean rank is known exactly, so a constant has exactly no scatter.
    centered = ranks - (len(first) + 1) / 2
    scatter = centered @ centered.T
    if (scatter.diagonal() == 0).any():
        raise ValueError("`first` or `second` is constant, so it has no ranking; leave it out.")
    return scatter[0, 1] / scatter.diagonal().prod().sqrt()


class RiskCoverageCurve(NamedTuple):
    """Mean error of the predictions that are kept, against their share.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> curve = hs.metrics.risk_coverage_curve(error, std)
        >>> curve.risk
        tensor([1.0000, 1.5000, 3.0000], dtype=torch.float64)
    """

    coverage: Tensor  # (n,), from 1/n to 1
    risk: Tensor  # (n,)


class SparsificationCurve(NamedTuple):
    """Mean error of the predictions that remain, against the share that is removed.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> curve = hs.metrics.sparsification_curve(error, std, normalize=False)
        >>> curve.error
        tensor([3.0000, 1.5000, 1.0000], dtype=torch.float64)
    """

    removed: Tensor  # (n,), from 0 to 1 - 1/n
    error: Tensor  # (n,), the most uncertain removed first
    oracle: Tensor  # (n,), the largest errors removed first


@values_over(entries)
def risk_coverage_curve(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
) -> RiskCoverageCurve:
    """Mean error of the most certain predictions, for every coverage.

    For classification the error is 1 where the class is wrong. El-Yaniv & Wiener (2010).

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> hs.metrics.risk_coverage_curve(error, std).risk
        tensor([1.0000, 1.5000, 3.0000], dtype=torch.float64)
    """
    return RiskCoverageCurve(_counts(error) / len(error), _risks(error, uncertainty))


@values_over(entries)
def aurc(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Area under the risk-coverage curve: mean of the risk over all coverages k/n.

    In units of the error; lower is better. Geifman et al. (2019).

    Examples:
        >>> error, std = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> hs.metrics.aurc(error, std)
        tensor(0.1111, dtype=torch.float64)
    """
    return _risks(error, uncertainty).mean()


@values_over(entries)
def sparsification_curve(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    normalize: bool = True,
    mask: Tensor | None = None,  # (...), bool
) -> SparsificationCurve:
    """Mean error of what remains when the most uncertain predictions are removed.

    Args:
        error: Error of each prediction, such as |target - mean| or its end point error. For RMSE
            give squared errors with `normalize=False` and take the root of both curves.
        uncertainty: Variance, standard deviation, or anything that rises with it.
        normalize: Divides both curves by the mean error, so that they begin at 1; False
            leaves them in units of the error.
        mask: False entries do not count and may be NaN.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> hs.metrics.sparsification_curve(error, std, normalize=False).error
        tensor([3.0000, 1.5000, 1.0000], dtype=torch.float64)
    """
    if normalize:
        error = _relative(error)
    removed = (_counts(error) - 1) / len(error)
    return SparsificationCurve(
        removed, _risks(error, uncertainty).flip(0), _oracle_risks(error).flip(0)
    )


@values_over(entries)
def ause(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    normalize: bool = True,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Area under the sparsification error: mean over k of risk(k) - oracle risk(k).

    0 if the uncertainty sorts like the error. After Ilg et al. (2018); published numbers differ in
    the normalization, so state it with the number.

    Args:
        error: Error of each prediction, such as |target - mean| or its end point error.
        uncertainty: Variance, standard deviation, or anything that rises with it.
        normalize: Divides by the mean error: a number without unit, which says how good the
            uncertainty is and not how good the predictions are. False: in units of the error,
            the excess AURC of Geifman et al. (2019).
        mask: False entries do not count and may be NaN.

    Examples:
        >>> error, std = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> hs.metrics.ause(error, std)  # the largest errors have the largest std
        tensor(0., dtype=torch.float64)
    """
    if normalize:
        error = _relative(error)
    return (_risks(error, uncertainty) - _oracle_risks(error)).mean()


def _risks(
    error: Tensor,  # (n,)
    uncertainty: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Mean error of the k most certain predictions, k = 1..n."""
    ordered, order = ascending(uncertainty)
    return tied_means(ordered, error.index_select(0, order)).cumsum(0) / _counts(error)


def _oracle_risks(
    error: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Mean error of the k smallest errors, k = 1..n."""
    return ascending(error)[0].cumsum(0) / _counts(error)


def _counts(error: Tensor) -> Tensor:
    return torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)


def _relative(error: Tensor) -> Tensor:
    mean = error.mean()
    if mean == 0:
        raise ValueError(
            "`error` is 0 everywhere, so it cannot be normalized by its mean; pass "
            "`normalize=False`."
        )
    return error / mean


def ascending(
    values: Tensor,  # (n,)
) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """The sorted values and their positions; equal values in any order."""
    if values.device.type != "cpu":
        return values.sort()
    # numpy takes a fifth of the time of torch.
    order = torch.from_numpy(values.detach().numpy().argsort())
    return values.index_select(0, order), order


def average_ranks(
    values: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Ranks from 1; equal values share the mean of their ranks."""
    ordered, order = ascending(values)
    return torch.empty_like(values).scatter_(0, order, tied_means(ordered, _counts(values)))


def binned_means(
    keys: Tensor,  # (n,)
    values: Tensor,  # (n,)
    bins: int,
) -> tuple[Tensor, Tensor]:  # (bins,), (bins,)
    """Means of the keys and of the values in bins of equal count, sorted by key."""
    ordered, order = ascending(keys)
    columns = (ordered, tied_means(ordered, values.index_select(0, order)))
    first, second = (torch.stack([x.mean() for x in c.tensor_split(bins)]) for c in columns)
    return first, second


def tied_means(
    keys: Tensor,  # (n,), ascending
    values: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Values, where keys are equal replaced by their mean: the expectation over orders of ties."""
    _, group, counts = keys.unique_consecutive(return_inverse=True, return_counts=True)
    if len(counts) == len(keys):
        return values
    return (torch.bincount(group, weights=values) / counts).index_select(0, group)
