"""The one place that says which inputs metrics accept.

Every function returns the chosen entries, `(n,)` or `(n, k)`, in float64: sums over millions of
float32 predictions lose the digits by which methods differ. Shapes must be equal, since
broadcasting `(n,)` against `(n, 1)` is a silent error of a common kind.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.selection import are_tensors, select, share

# How far rows of probabilities may be from summing to 1: the rounding of bfloat16.
_SUM_TOLERANCE = 1e-2


class Points(NamedTuple):
    """Predicted values, true values and weights."""

    mean: Tensor  # (n,), or (n, d) for vectors
    target: Tensor  # like mean
    weight: Tensor  # (n,)


class Gaussians(NamedTuple):
    """Predicted Gaussians, true values and weights."""

    mean: Tensor  # (n,), or (n, classes)
    var: Tensor  # like mean, not negative
    target: Tensor  # like mean; for classes (n,), int64
    weight: Tensor  # (n,)


class Classes(NamedTuple):
    """One score per class, the true class and weights."""

    scores: Tensor  # (n, classes)
    target: Tensor  # (n,), int64
    weight: Tensor  # (n,)


def points(
    mean: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Points:
    """Chosen predictions and targets of a regression."""
    _same_shape(mean=mean, target=target)
    return Points(*select(target.shape, mask, weight, mean=mean, target=target))


def gaussians(
    mean: Tensor,  # (...)
    var: Tensor,  # (...)
    target: Tensor,  # (...)
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Gaussians:
    """Chosen Gaussian predictions and targets."""
    _same_shape(mean=mean, var=var, target=target)
    chosen = Gaussians(*select(target.shape, mask, weight, mean=mean, var=var, target=target))
    _not_negative("var", chosen.var, "was a log variance passed?")
    return chosen


def variances(
    var: Tensor,  # (...)
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Chosen variances and their weights."""
    are_tensors(var=var)
    chosen, weights = select(var.shape, mask, weight, var=var)
    _not_negative("var", chosen, "was a log variance passed?")
    return chosen, weights


def vectors(
    mean: Tensor,  # (..., d, ...), d at `dim`
    target: Tensor,  # like mean
    *,
    dim: int = 1,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Points:
    """Chosen vectors of two fields; masks have no vector dimension, or one of size 1."""
    _same_shape(mean=mean, target=target)
    if not -mean.dim() <= dim < mean.dim():
        raise ValueError(
            f"`mean` has shape {tuple(mean.shape)} and no dimension {dim} for the components of "
            "a vector; choose another `dim=`."
        )
    mean, target = mean.movedim(dim, -1), target.movedim(dim, -1)
    mask, weight = (
        x.squeeze(dim) if x is not None and x.dim() == mean.dim() else x for x in (mask, weight)
    )
    return Points(*select(target.shape[:-1], mask, weight, mean=mean, target=target))


def ellipsoids(
    covariance: Tensor,  # (..., d, d), or variances (..., d)
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    **vectors: Tensor,  # (..., d)
) -> list[Tensor]:
    """Cholesky factors of the chosen covariances, the chosen vectors by name, and weights."""
    _same_shape(**vectors)
    are_tensors(covariance=covariance)
    name, first = next(iter(vectors.items()))
    if first.dim() == 0 or covariance.shape not in (first.shape, (*first.shape, first.shape[-1])):
        raise ValueError(
            f"`{name}` has shape {tuple(first.shape)} and `covariance` has shape "
            f"{tuple(covariance.shape)}; give (..., d) and (..., d, d), or variances (..., d)."
        )
    full = torch.diag_embed(covariance) if covariance.dim() == first.dim() else covariance
    chosen = select(first.shape[:-1], mask, weight, covariance=full, **vectors)
    factors, failed = torch.linalg.cholesky_ex(chosen[0])
    if bool((failed > 0).any()):
        raise ValueError(
            f"`covariance` is not positive definite in {share(failed > 0)} entries, where this "
            "metric is undefined."
        )
    return [factors, *chosen[1:]]


def classes(
    scores: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Classes:
    """Chosen scores and true classes; shapes as in `torch.nn.functional.cross_entropy`."""
    return _classes("scores", scores, target, mask, weight)


def class_probabilities(
    probabilities: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Classes:
    """Chosen rows of probabilities, not negative and with sum 1, and true classes."""
    chosen = _classes("probabilities", probabilities, target, mask, weight)
    off = (chosen.scores.sum(1) - 1).abs() > _SUM_TOLERANCE
    bad = off | (chosen.scores.amin(1) < 0)
    if bad.any():
        raise ValueError(
            f"`probabilities` is negative or does not sum to 1 over dimension 1 in {share(bad)} "
            "rows; turn logits into probabilities with `logits.softmax(1)`."
        )
    return chosen


def class_gaussians(
    mean: Tensor,  # (batch, classes, ...)
    var: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Gaussians:
    """Chosen Gaussians per class, `(n, classes)`, and true classes, `(n,)`."""
    _same_shape(mean=mean, var=var)
    rows = {name: _class_last(name, x, target) for name, x in {"mean": mean, "var": var}.items()}
    means, variances, labels, weights = select(target.shape, mask, weight, **rows, target=target)
    _not_negative("var", variances, "was a log variance passed?")
    return Gaussians(means, variances, _class_indices(labels, means.shape[1]), weights)


def errors(
    error: Tensor,  # (...)
    uncertainty: Tensor,  # (...)
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Chosen errors, and the uncertainties that should rank them."""
    _same_shape(error=error, uncertainty=uncertainty)
    chosen, ranking, _ = select(error.shape, mask, None, error=error, uncertainty=uncertainty)
    _not_negative("error", chosen, "take `abs()` or square the residuals.")
    return chosen, ranking


def detections(
    score: Tensor,  # (...)
    positive: Tensor,  # (...), bool, or 0 and 1
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Chosen scores, and 1 where there is what they should detect, else 0."""
    _same_shape(score=score, positive=positive)
    scores, labels, _ = select(score.shape, mask, None, score=score, positive=positive)
    if ((labels != 0) & (labels != 1)).any():
        raise ValueError("`positive` holds values other than 0 and 1; pass a boolean tensor.")
    return scores, labels


def pairs(
    first: Tensor,  # (...)
    second: Tensor,  # (...)
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The entries of two tensors that the mask selects."""
    _same_shape(first=first, second=second)
    left, right, _ = select(first.shape, mask, None, first=first, second=second)
    return left, right


def positive_variance(var: Tensor, floor: float = 0.0) -> Tensor:
    """Variances raised to `floor`; an error if one is still 0."""
    if not floor >= 0:
        raise ValueError(f"`floor` is {floor}; give a variance, 0 or a small positive number.")
    raised = var.clamp(min=floor) if floor else var
    if raised.amin() == 0:
        raise ValueError(
            f"`var` is 0 in {share(raised == 0)} entries, where this metric is undefined; raise it "
            "with `var.clamp(min=...)` (likelihoods: `floor=...`) and state that floor with the "
            "number."
        )
    return raised


def probability(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"`{name}` is {value}; give a probability between 0 and 1, such as 0.95.")
    return value


def bin_count(bins: int, entries: int | None = None) -> int:
    """A number of bins, no larger than the number of entries to be put into them."""
    if bins < 1:
        raise ValueError(f"`bins` is {bins}; give at least 1.")
    if entries is not None and bins > entries:
        raise ValueError(f"`bins` is {bins} for {entries} predictions; give at most {entries}.")
    return bins


def _same_shape(**tensors: Tensor) -> None:
    are_tensors(**tensors)
    (first, expected), *others = tensors.items()
    for name, value in others:
        if value.shape != expected.shape:
            raise ValueError(
                f"`{first}` has shape {tuple(expected.shape)} and `{name}` has shape "
                f"{tuple(value.shape)}; make them equal, for example with `squeeze` or `expand_as`."
            )


def _classes(
    name: str, scores: Tensor, target: Tensor, mask: Tensor | None, weight: Tensor | None
) -> Classes:
    rows = {name: _class_last(name, scores, target)}
    chosen, labels, weights = select(target.shape, mask, weight, **rows, target=target)
    return Classes(chosen, _class_indices(labels, chosen.shape[1]), weights)


def _class_last(name: str, scores: Tensor, target: Tensor) -> Tensor:
    are_tensors(**{name: scores}, target=target)
    if scores.dim() < 2 or scores.shape[:1] + scores.shape[2:] != target.shape:
        raise ValueError(
            f"`{name}` has shape {tuple(scores.shape)} and `target` has shape "
            f"{tuple(target.shape)}; give (batch, classes, ...) and class indices (batch, ...)."
        )
    return scores.movedim(1, -1)


def _class_indices(target: Tensor, count: int) -> Tensor:
    bad = (target < 0) | (target >= count) | (target != target.floor())
    if bad.any():
        raise ValueError(
            f"`target` is not a class index from 0 to {count - 1} in {share(bad)} entries; "
            "leave such entries out with `mask=`."
        )
    return target.long()


def _not_negative(name: str, entries: Tensor, hint: str) -> None:
    if entries.amin() < 0:
        raise ValueError(
            f"`{name}` is negative in {share(entries < 0)} entries, which it cannot be; {hint}"
        )
