"""Metrics of a run, and Markdown tables of them: mean and spread over seeds, the paper beside."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from howsure import metrics

MISSING = "-"
# Protects the logarithm of a variance of 0; the tables say so.
FLOOR = 1e-12


@dataclass(frozen=True)
class Column:
    """A metric of a table."""

    key: str  # in the results
    heading: str
    digits: int = 3


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


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of a metric over seeds, `None` where it is not finite."""

    mean: float | None
    spread: float | None
    count: int

    @staticmethod
    def of(values: Iterable[float | None]) -> Summary:
        """The summary of one value per seed; a missing one makes the mean missing."""
        found = list(values)
        known = [value for value in found if value is not None]
        if not found or len(known) < len(found):
            return Summary(None, None, len(found))
        spread = statistics.stdev(known) if len(known) > 1 else None
        return Summary(statistics.fmean(known), spread, len(known))

    def text(self, digits: int) -> str:
        """`mean` or `mean ± spread`."""
        words = number(self.mean, digits)
        return words if self.spread is None else f"{words} ± {number(self.spread, digits)}"


def number(value: float | None, digits: int) -> str:
    """A number with fixed digits; large ones with three significant digits."""
    if value is None:
        return MISSING
    return f"{value:.3g}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def by_method(
    lines: Iterable[Mapping[str, Any]], value: Callable[[Any], Any], key: str = "method"
) -> dict[str, list[Any]]:
    """The value of every line, such as one for each seed, gathered by method."""
    found: dict[str, list[Any]] = {}
    for line in lines:
        found.setdefault(line[key], []).append(value(line))
    return found


def cells(runs: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[str]:
    """A row of a table: the summary of every metric over the runs of one method."""
    return [Summary.of(run.get(c.key) for run in runs).text(c.digits) for c in columns]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column is text, the others are numbers."""
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ruler, *rows)) + "\n"


def method_table(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],  # per method, one mapping per seed
    columns: Sequence[Column],
    *,
    labels: Mapping[str, str],
    paper: Mapping[str, str] | None = None,
) -> str:
    """A table with one line per method; with the paper's numbers in the last column."""
    headings = ["method", *(column.heading for column in columns)]
    rows = [[labels.get(name, name), *cells(found, columns)] for name, found in runs.items()]
    if paper is not None:
        headings.append("paper")
        rows = [[*row, paper.get(name, MISSING)] for name, row in zip(runs, rows, strict=True)]
    return markdown(headings, rows)


def regression_scores(
    mean: Tensor,  # (n, ...)
    var: Tensor,  # (n, ...)
    target: Tensor,  # (n, ...)
) -> dict[str, float]:
    """All metrics of predictions with total variance `var`."""
    error = (target - mean).abs()
    return {
        "rmse": float(metrics.rmse(mean, target)),
        "eva": float(metrics.explained_variance(mean, target)),
        "nll": float(metrics.nll(mean, var, target, floor=FLOOR, include_constant=True)),
        "nll_without_constant": float(metrics.nll(mean, var, target, floor=FLOOR)),
        "rank": rank_of(var, error),
        "ause": float(metrics.ause(error, var)),
        "coverage": float(metrics.coverage(mean, var, target, level=0.95)),
        "std": float(var.sqrt().mean()),
        "count": len(target),
    }


def rank_of(var: Tensor, error: Tensor) -> float:
    """Rank correlation; a constant variance tells nothing, so it has 0."""
    return 0.0 if is_constant(var) else float(metrics.rank_correlation(var, error))


def is_constant(var: Tensor) -> bool:
    """Whether all variances are the same but for rounding."""
    first = var.flatten()[0]
    return bool((var - first).abs().max() <= 1e-6 * first)
