"""The demonstration's two tables: single predictions, and the summary per noise level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from howsure.demo.compare import Comparison, Winner
from howsure.metrics import rank_correlation

_PREDICTIONS = """\
 noise   digit   network    proba-   its std:
   std   shown      says    bility    howsure     true   correct"""

_SUMMARY = """\
 noise      accuracy       std of the winning logit       std of its probability
   std   plain   mean    howsure   true  ratio   rank    howsure   true  ratio   rank  p(1-p)"""


def prediction_table(comparisons: Sequence[Comparison], *, rows: int) -> str:
    """The same digits at every noise level, from the surest to the least sure at the last one."""
    order = comparisons[-1].by_certainty
    chosen = order[torch.linspace(0, len(order) - 1, rows).round().long()].tolist()
    groups = ["\n".join(_prediction(c, i) for i in chosen) for c in comparisons]
    return _PREDICTIONS + "\n" + "\n\n".join(groups)


def _prediction(comparison: Comparison, i: int) -> str:
    probability = comparison.probability
    return (
        f"{comparison.noise_std:6.2f}{int(comparison.readings.labels[i]):8d}"
        f"{int(comparison.says[i]):10d}{float(probability.predicted.mean[i]):10.4f}"
        f"{float(probability.predicted.var[i].sqrt()):11.4f}"
        f"{float(probability.sampled.var[i].sqrt()):9.4f}"
        f"{'yes' if comparison.correct[i] else 'NO':>10}"
    )


def summary_table(comparisons: Iterable[Comparison]) -> str:
    """One line per noise level, all digits together."""
    return "\n".join([_SUMMARY, *map(_summary, comparisons)])


def _summary(comparison: Comparison) -> str:
    plain = _share(comparison.plain == comparison.readings.labels)
    return (
        f"{comparison.noise_std:6.2f}{plain:8.3f}{_share(comparison.correct):7.3f}"
        f"  {_spread(comparison.logit, digits=3)}  {_spread(comparison.probability, digits=4)}"
        f"{_rank(comparison.doubt, comparison.probability):>8}"
    )


def _spread(winner: Winner, *, digits: int) -> str:
    """Mean std by propagation and by brute force, their ratio and their rank correlation."""
    predicted, sampled = winner.predicted.var.sqrt(), winner.sampled.var.sqrt()
    means = f"{float(predicted.mean()):9.{digits}f}{float(sampled.mean()):7.{digits}f}"
    ratio = f"{winner.ratio:.3f}" if bool(predicted.any()) else "-"
    return f"{means}{ratio:>7}{_rank(predicted, winner):>7}"


def _rank(
    score: Tensor,  # (n,)
    winner: Winner,
) -> str:
    """Rank correlation of a score with the true std; a dash where there is no noise."""
    if not bool(winner.predicted.var.any()):
        return "-"
    return f"{float(rank_correlation(score, winner.sampled.var.sqrt())):.2f}"


def _share(correct: Tensor) -> float:
    return float(correct.double().mean())
