"""What a report says of a classification: its numbers in words, at every noise level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure import metrics
from howsure.report import readings
from howsure.report.charts import classification_charts
from howsure.report.options import Levels
from howsure.report.outcomes import Decisions, Outcome, decisions
from howsure.report.readings import Measured, measured, percent
from howsure.report.regression import data_share
from howsure.report.values import Metric, View

_BINS = 15


def views(outcomes: Sequence[Outcome], levels: Levels) -> list[View]:
    """One view for each noise level."""
    decided = [decisions(outcome) for outcome in outcomes]
    numbers = [metric_list(*pair) for pair in zip(outcomes, decided, strict=True)]
    charts = classification_charts(decided, levels)
    return [View(headline(m), tuple(m), c) for m, c in zip(numbers, charts, strict=True)]


def metric_list(outcome: Outcome, seen: Decisions) -> list[Metric]:
    """The numbers with their readings, the most telling first."""
    rows, target = seen.probabilities, seen.target
    classes, n = rows.shape[1], outcome.inputs
    right = float(metrics.accuracy(rows, target))
    confidence = float(seen.confidence.mean())
    var = outcome.var.movedim(1, -1).flatten(0, 1)

    def finds_errors(name: str, uncertainty: Tensor) -> Metric:
        found = measured(metrics.misclassification_auroc, uncertainty, rows, target)
        return found.metric(f"AUROC of errors, by {name}", readings.detection, percent)

    return [
        Measured(right).metric(
            "Accuracy", lambda v: f"{percent(v)} of the classes are right.", percent
        ),
        Measured(confidence).metric(
            "Mean confidence", lambda v: readings.confidence(v, right, n), percent
        ),
        finds_errors("entropy", seen.entropy),
        finds_errors("std", seen.std),
        _order(seen),
        measured(metrics.ece, rows, target, bins=_BINS).metric(
            "ECE, 15 bins", readings.gap, percent
        ),
        measured(metrics.categorical_nll, rows, target).metric(
            "NLL of the class", lambda v: readings.log_loss(v, classes)
        ),
        measured(metrics.brier, rows, target, reduction="sum").metric(
            "Brier score, sum over classes", lambda v: readings.brier(v, classes)
        ),
        measured(metrics.one_hot_nll, rows, var, target).metric(
            "One-hot NLL, mean over classes",
            lambda _: "The likelihood by which the paper compares methods; lower is better.",
        ),
        Measured(float(seen.std.mean())).metric(
            "Mean std of the winning probability",
            lambda v: f"The winning probability typically varies by {percent(v)}.",
        ),
        data_share(outcome),
    ]


def headline(rows: Sequence[Metric]) -> tuple[str, ...]:
    """The three sentences that matter most: size, order, source."""
    chosen = ("Mean confidence", "AUROC of errors, by entropy", "Variance from the sensor")
    by_name = {row.name: row for row in rows}
    return tuple(by_name[name].reading for name in chosen if by_name[name].value is not None)


def _order(seen: Decisions) -> Metric:
    chance = measured(metrics.ause, seen.wrong, torch.zeros_like(seen.wrong)).value or 0.0
    found = measured(metrics.ause, seen.wrong, seen.entropy)
    return found.metric("AUSE, by entropy", lambda v: readings.order(v, chance))
