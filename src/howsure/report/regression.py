"""What a report says of a regression: its numbers in words, at every noise level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from howsure import metrics
from howsure.report import readings
from howsure.report.charts import regression_charts
from howsure.report.options import Levels
from howsure.report.outcomes import Outcome
from howsure.report.readings import Measured, measured, percent
from howsure.report.values import Metric, View

_BINS = 10
_DRAWN = 20_000  # errors that are drawn in all, so that large data does not take long


def views(outcomes: Sequence[Outcome], levels: Levels) -> list[View]:
    """One view for each noise level of the same output."""
    numbers = [metric_list(outcome) for outcome in outcomes]
    charts = regression_charts(outcomes, levels)
    return [View(headline(m), tuple(m), c) for m, c in zip(numbers, charts, strict=True)]


def metric_list(outcome: Outcome) -> list[Metric]:
    """The numbers with their readings, the most telling first."""
    mean, var, target = (t.flatten() for t in (outcome.mean, outcome.var, outcome.target))
    error, n = outcome.error.flatten(), outcome.inputs
    rmse, mae = float(metrics.rmse(mean, target)), float(metrics.mae(mean, target))
    std = float(metrics.sharpness(var))
    ratio = Measured(std / rmse) if rmse else Measured(None, "the predictions have no error.")
    bins, nu = min(_BINS, len(var)), outcome.degrees_of_freedom

    def held(level: float) -> Metric:
        found = measured(metrics.coverage, mean, var, target, level=level, degrees_of_freedom=nu)
        return found.metric(_coverage_of(level), lambda v: readings.coverage(v, level, n), percent)

    return [
        held(0.95),
        held(0.68),
        ratio.metric("Predicted std / error", lambda _: readings.spread(std, rmse)),
        _order(error, var),
        Measured(rmse).metric("RMSE", lambda v: readings.error_size(v, _std_of(target))),
        Measured(mae).metric("MAE", lambda _: "The mean size of the error."),
        measured(metrics.nll, mean, var, target, degrees_of_freedom=nu).metric(
            "NLL, without ½ log 2π", lambda v: readings.likelihood(v, _constant_nll(rmse))
        ),
        measured(metrics.crps, mean, var, target, degrees_of_freedom=nu).metric(
            "CRPS", lambda v: readings.crps(v, mae)
        ),
        measured(metrics.miscalibration_area, mean, var, target).metric(
            "Miscalibration area", readings.area
        ),
        measured(metrics.ence, mean, var, target, bins=bins).metric(
            f"ENCE, {bins} bins", readings.ence
        ),
        _rank(error, var),
        data_share(outcome),
    ]


def data_share(outcome: Outcome) -> Metric:
    """The sensor's part of the variance."""
    data, model = (float(each.double().sum()) for each in (outcome.data_var, outcome.model_var))
    # A part that is there counts, however small: only 0 is rounded to none.
    most = math.nextafter(1.0, 0.0) if model > 0 else 1.0
    share = (
        Measured(min(data / (data + model), most))
        if data + model
        else Measured(None, "the variance is 0.")
    )
    return share.metric("Variance from the sensor", readings.sources, percent)


def headline(rows: Sequence[Metric]) -> tuple[str, ...]:
    """The three sentences that matter most: size, order, source."""
    chosen = (_coverage_of(0.95), "AUSE", "Variance from the sensor")
    by_name = {row.name: row for row in rows}
    return tuple(by_name[name].reading for name in chosen if by_name[name].value is not None)


def _coverage_of(level: float) -> str:
    return f"Coverage of the {percent(level)} interval"


def _order(error: Tensor, var: Tensor) -> Metric:
    """AUSE, beside what an order by chance would score, and a std that is exactly right."""
    chance = measured(metrics.ause, error, torch.zeros_like(error)).value or 0.0
    of_truth = _if_right(lambda errors: metrics.ause(errors, var), var)
    none = _if_right(lambda errors: metrics.ause(errors, torch.zeros_like(var)), var)
    # In units of what chance scores, because the two sets of errors differ in their oracle.
    limit = chance * of_truth / none if of_truth is not None and none else None
    found = measured(metrics.ause, error, var)
    return found.metric("AUSE", lambda v: readings.order(v, chance, limit))


def _rank(error: Tensor, var: Tensor) -> Metric:
    limit = _if_right(lambda errors: metrics.rank_correlation(var, errors), var)
    found = measured(metrics.rank_correlation, var, error)
    name = "Rank correlation of std and error"
    return found.metric(name, lambda v: readings.rank(v, limit))


def _if_right(score: Callable[[Tensor], Tensor], var: Tensor) -> float | None:
    """The average score of errors drawn as the variances promise: what could at best be seen."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(max(1, min(50, _DRAWN // max(len(var), 1)))):
        errors = torch.randn(var.shape, generator=generator, dtype=var.dtype).abs() * var.sqrt()
        found.append(measured(score, errors).value)
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def _std_of(target: Tensor) -> float:
    return float(target.std(correction=0))


def _constant_nll(rmse: float) -> float:
    """The NLL of the best constant variance, which is the mean squared error."""
    return math.log(rmse) + 0.5 if rmse > 0 else -math.inf
