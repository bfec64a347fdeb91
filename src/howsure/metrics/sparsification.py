"""What is gained by leaving out uncertain predictions: sparsification and risk-coverage.

Both look at the mean error of the most certain predictions, sorted by uncertainty:
risk(k) = mean of the k smallest-uncertainty errors, k = 1..n. Then AURC = mean of risk(k) over k,
and AUSE is AURC less that of the oracle, which sorts by the error itself. Predictions of equal
uncertainty share their mean error, which is the expectation over their order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure.metrics.checks import errors
from howsure.metrics.ranks import sorted_values, tied_means
from howsure.metrics.streaming import kept


class RiskCoverageCurve(NamedTuple):
    """Mean error of the predictions that are kept, against their share."""

    coverage: Tensor  # (n,), from 1/n to 1
    risk: Tensor  # (n,)


class SparsificationCurve(NamedTuple):
    """Mean error of the predictions that remain, against the share that is removed."""

    removed: Tensor  # (n,), from 0 to 1 - 1/n
    error: Tensor  # (n,), the most uncertain removed first
    oracle: Tensor  # (n,), the largest errors removed first


@kept(errors)
def risk_coverage_curve(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
) -> RiskCoverageCurve:
    """Mean error of the most certain predictions, for every coverage.

    For classification the error is 1 where the class is wrong. El-Yaniv & Wiener (2010).
    """
    error, uncertainty = errors(error, uncertainty, mask=mask)
    return RiskCoverageCurve(_counts(error) / len(error), _risks(error, uncertainty))


@kept(errors)
def aurc(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Area under the risk-coverage curve: mean of the risk over all coverages k/n.

    In units of the error; lower is better. Geifman et al. (2019).
    """
    return _risks(*errors(error, uncertainty, mask=mask)).mean()


@kept(errors)
def sparsification_curve(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    normalise: bool = True,
    mask: Tensor | None = None,  # (...), bool
) -> SparsificationCurve:
    """Mean error of what remains when the most uncertain predictions are removed.

    Args:
        error: Error of each prediction, such as |target - mean| or its end point error. For RMSE
            give squared errors with `normalise=False` and take the root of both curves.
        uncertainty: Variance, standard deviation, or anything that rises with it.
        normalise: Divides both curves by the mean error, so that they begin at 1; False
            leaves them in units of the error.
        mask: False entries do not count and may be NaN.
    """
    error, uncertainty = errors(error, uncertainty, mask=mask)
    if normalise:
        error = _relative(error)
    removed = (_counts(error) - 1) / len(error)
    return SparsificationCurve(
        removed, _risks(error, uncertainty).flip(0), _oracle_risks(error).flip(0)
    )


@kept(errors)
def ause(
    error: Tensor,  # (...), not negative
    uncertainty: Tensor,  # (...)
    *,
    normalise: bool = True,
    mask: Tensor | None = None,  # (...), bool
) -> Tensor:
    """Area under the sparsification error: mean over k of risk(k) - oracle risk(k).

    0 if the uncertainty sorts like the error. After Ilg et al. (2018); published numbers differ in
    the normalisation, so state it with the number.

    Args:
        error: Error of each prediction, such as |target - mean| or its end point error.
        uncertainty: Variance, standard deviation, or anything that rises with it.
        normalise: Divides by the mean error: a number without unit, which says how good the
            uncertainty is and not how good the predictions are. False: in units of the error,
            the excess AURC of Geifman et al. (2019).
        mask: False entries do not count and may be NaN.
    """
    error, uncertainty = errors(error, uncertainty, mask=mask)
    if normalise:
        error = _relative(error)
    return (_risks(error, uncertainty) - _oracle_risks(error)).mean()


def _risks(
    error: Tensor,  # (n,)
    uncertainty: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Mean error of the k most certain predictions, k = 1..n."""
    ordered, order = uncertainty.sort()
    return tied_means(ordered, error[order]).cumsum(0) / _counts(error)


def _oracle_risks(
    error: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Mean error of the k smallest errors, k = 1..n."""
    return sorted_values(error).cumsum(0) / _counts(error)


def _counts(error: Tensor) -> Tensor:
    return torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)


def _relative(error: Tensor) -> Tensor:
    mean = error.mean()
    if mean == 0:
        raise ValueError(
            "`error` is 0 everywhere, so it cannot be normalised by its mean; pass "
            "`normalise=False`."
        )
    return error / mean
