"""The metrics of a regression run, as plain numbers."""

from __future__ import annotations

from torch import Tensor

from howsure import metrics
from howsure_lab.experiments.tables import Column

# Protects the logarithm of a variance of 0; the tables say so.
FLOOR = 1e-12

REGRESSION = (
    Column("rmse", "RMSE"),
    Column("eva", "EVA"),
    Column("nll", "NLL", 2),
    Column("rank", "rank", 2),
    Column("ause", "AUSE", 2),
    Column("coverage", "coverage 95 %", 2),
    Column("std", "mean std"),
)
READING = (
    "NLL includes 1/2 log 2 pi (0.919), as the paper's tables evidently do. rank: Spearman "
    "correlation of predicted std and absolute error. AUSE: area between the sparsification curve "
    "and the best possible one, relative to the mean absolute error; 0 is perfect. coverage: share "
    f"of targets in the 95 % interval. Variances below {FLOOR:g} are raised to it in the NLL."
)


def regression_scores(
    mean: Tensor,  # (n, ...)
    var: Tensor,  # (n, ...)
    target: Tensor,  # (n, ...)
) -> dict[str, float]:
    """All metrics of predictions with total variance `var`."""
    error = (target - mean).abs()
    plain = float(metrics.nll(mean, var, target, floor=FLOOR))
    full = float(metrics.nll(mean, var, target, floor=FLOOR, include_constant=True))
    return {
        "rmse": float(metrics.rmse(mean, target)),
        "eva": float(metrics.explained_variance(mean, target)),
        "nll": full,
        "nll_without_constant": plain,
        "rank": _rank(var, error),
        "ause": float(metrics.ause(error, var)),
        "coverage": float(metrics.coverage(mean, var, target, level=0.95)),
        "std": float(var.sqrt().mean()),
        "count": len(target),
    }


def _rank(var: Tensor, error: Tensor) -> float:
    """Rank correlation; a constant variance tells nothing, so it has 0."""
    if bool((var == var.flatten()[0]).all()):
        return 0.0
    return float(metrics.rank_correlation(var, error))
