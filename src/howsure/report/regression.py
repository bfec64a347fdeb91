"""What a report says of a regression at every noise level: numbers, charts and single cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure import metrics, plots
from howsure.metrics.regression import PERCENT
from howsure.plots.theme import LIGHT
from howsure.plots.values import thinned
from howsure.prediction import Prediction
from howsure.report import readings
from howsure.report.cases import number, show_cases
from howsure.report.charts import MOST_MARKS, draw_levels, sparsification_charts, sweep_charts
from howsure.report.options import Levels, Options
from howsure.report.outcomes import Outcome, data_share
from howsure.report.readings import metric, percent, short
from howsure.report.values import Cell, Chart, Gallery, Metric, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADLINE = ("Coverage of the 95\u00a0% interval", "AUSE", "Variance from the sensor")
_GROUPS = 10
_DRAWN = 20_000  # errors that are drawn in all, so that large data does not take long
# Outputs of one case that are written out; of more, only the mean.
_WRITTEN = 3
# Errors of more stds than this are marked.
_FAR = 3.0


def numbers(outcome: Outcome) -> list[Metric]:
    """The numbers with their readings, the most telling first."""
    mean, var, target = data = [t.flatten() for t in (outcome.mean, outcome.var, outcome.target)]
    error, inputs, student = (target - mean).abs(), len(outcome.mean), outcome.student
    rmse, mae = float(metrics.rmse(mean, target)), float(metrics.mae(mean, target))
    std = float(metrics.sharpness(var))
    groups = min(_GROUPS, len(var))
    # The NLL of the best constant variance, which is the mean squared error.
    constant = math.log(rmse) + 0.5 if rmse > 0 else -math.inf

    def covered(level: float) -> Metric:
        name = f"Coverage of the {percent(level)} interval"
        share = partial(metrics.coverage, *data, level=level, **student)
        return metric(name, share, readings.coverage, level, inputs, form=percent)

    def ratio() -> float:
        if not rmse:
            raise ValueError("the predictions have no error.")
        return std / rmse

    # An order by chance scores `chance`; a std that is exactly right scores `limit`, in units of
    # what chance scores there, because the two sets of errors differ in their oracle.
    unordered = torch.zeros_like(var)
    chance = _value_or_none(metrics.ause, error, unordered) or 0.0
    right = [_if_right(metrics.ause, var, order) for order in (var, unordered)]
    limit = chance * right[0] / right[1] if right[0] is not None and right[1] else None
    best_rank = _if_right(metrics.rank_correlation, var, var)
    ranked = partial(metrics.rank_correlation, error, var)
    nll = partial(metrics.nll, *data, **student)
    area = partial(metrics.miscalibration_area, *data)
    return [
        covered(0.95),
        covered(0.68),
        metric("Predicted std / error", ratio, lambda _: readings.spread(std, rmse)),
        metric("AUSE", partial(metrics.ause, error, var), readings.order, chance, limit),
        metric("RMSE", lambda: rmse, readings.error_size, float(target.std(correction=0))),
        metric("MAE", lambda: mae, readings.mean_error),
        metric("NLL, without ½ log 2π", nll, readings.likelihood, constant),
        metric("CRPS", partial(metrics.crps, *data, **student), readings.crps, mae),
        metric("Miscalibration area", area, readings.area),
        metric(f"ENCE, {groups} bins", partial(metrics.ence, *data, bins=groups), readings.ence),
        metric("Rank correlation of std and error", ranked, readings.rank, best_rank),
        data_share(outcome),
    ]


def _value_or_none(score: Callable[..., Tensor], *data: Tensor) -> float | None:
    """The value of a metric, or `None` where it refuses."""
    try:
        return float(score(*data))
    except ValueError:
        return None


def _if_right(score: Callable[..., Tensor], var: Tensor, order: Tensor) -> float | None:
    """The mean `score(errors, order)` of errors as the variances promise: the best to be seen."""
    generator = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(max(1, min(50, _DRAWN // max(len(var), 1)))):
        errors = torch.randn(var.shape, generator=generator, dtype=var.dtype).abs() * var.sqrt()
        scores.append(_value_or_none(score, errors, order))
    values = [value for value in scores if value is not None]
    return sum(values) / len(values) if values else None


def charts(outcomes: Sequence[Outcome], levels: Levels) -> list[list[Chart]]:
    """The charts by question, each at every level."""
    inputs, count = len(outcomes[0].mean), outcomes[0].mean.numel()
    groups = min(_GROUPS, count)
    order = outcomes[0].target.flatten().argsort(stable=True)
    (chosen,) = thinned(order.numpy(), most=MOST_MARKS)

    def reliability(ax: Axes, outcome: Outcome) -> None:
        reach = [1.96 * math.sqrt(p * (1 - p) / inputs) for p in PERCENT]
        low, high = ([p + s * r for p, r in zip(PERCENT, reach, strict=True)] for s in (-1, 1))
        chance = {"facecolor": LIGHT.muted, "alpha": 0.4, "linewidth": 0, "label": "chance, 95 %"}
        ax.fill_between(PERCENT, low, high, **chance)
        plots.reliability((outcome.mean, outcome.var), outcome.target, ax=ax)

    def spread(ax: Axes, outcome: Outcome) -> None:
        plots.std_vs_error((outcome.mean, outcome.var), outcome.target, bins=groups, ax=ax)

    def bands(ax: Axes, outcome: Outcome) -> None:
        parts = (outcome.mean, outcome.data_var, outcome.model_var, outcome.target)
        mean, data_var, model_var, target = (t.flatten()[chosen] for t in parts)
        rank = torch.arange(1, len(chosen) + 1)
        plots.bands(rank, Prediction(mean, data_var, model_var), truth=target, ax=ax)
        ax.set(xlabel="rank of the target", ylabel="output")

    curves = {
        "predicted std": [float(outcome.var.mean().sqrt()) for outcome in outcomes],
        "RMSE": [float(outcome.error.square().mean().sqrt()) for outcome in outcomes],
    }
    return [
        draw_levels(
            "reliability",
            "Are the probabilities calibrated?",
            "How many targets lie below each predicted quantile. On the diagonal they are "
            "calibrated; a curve that is flatter in the middle means too sure, a steeper one too "
            "unsure.",
            reliability,
            outcomes,
        ),
        sparsification_charts(
            [(outcome.error, {"least sure rejected": outcome.var}) for outcome in outcomes],
            "Mean error",
        ),
        draw_levels(
            "spread",
            "Are errors as large as the std says?",
            f"Predictions in {groups} groups of equal size, from the surest to the least sure. "
            "Above the diagonal the errors are larger than promised.",
            spread,
            outcomes,
        ),
        # The range is that of the first level shown: wider intervals run out of the picture.
        draw_levels(
            "bands",
            "Predictions with their intervals",
            f"{len(chosen)} predictions, sorted by their target. About 95 % of the targets should "
            "lie in the band.",
            bands,
            outcomes,
            limits_of=levels.start,
        ),
        *sweep_charts(levels, curves, "units of the target"),
    ]


def cases(outcome: Outcome, options: Options) -> tuple[Table, tuple[Gallery, ...]]:
    """Every input with its prediction, its error and its stds, averaged over its outputs."""
    names = options.input_names(len(outcome.mean))
    mean, target = (t.flatten(1) for t in (outcome.mean, outcome.target))
    error = (target - mean).square().mean(1).sqrt()
    std, data_std, model_std = (
        v.flatten(1).mean(1).sqrt() for v in (outcome.var, outcome.data_var, outcome.model_var)
    )
    # 0 / 0 is 0, and any other error is infinite beside a std of 0.
    surprise = torch.where(error == 0, torch.zeros_like(error), error / std)
    sizes = {"error": error, "std": std, "error / std": surprise}
    sizes |= {"data std": data_std, "model std": model_std}

    def cell(values: Tensor) -> Cell:
        if len(values) > _WRITTEN:
            return number(float(values.mean()))
        return Cell(", ".join(short(v) for v in values.tolist()), float(values.mean()))

    def describe(i: int) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
        predicted, truth = cell(mean[i]), cell(target[i])
        numbers = [number(float(size[i])) for size in sizes.values()]
        lines = (f"{predicted.text} ± {numbers[1].text}", f"target {truth.text}")
        row = (Cell(names[i], float(i)), predicted, truth, *numbers)
        return row, (*lines, f"error {numbers[0].text}")

    return show_cases(
        options,
        {"case": False, **dict.fromkeys(("prediction", "target", *sizes), True)},
        describe,
        doubt=std,
        badness=surprise,
        error=error,
        wrong=surprise > _FAR,
        worst="The largest error in relation to the predicted std.",
    )
