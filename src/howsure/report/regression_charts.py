"""The charts of a regression; those that depend on the noise come one for each level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from howsure import metrics
from howsure.report.axes import (
    linear_axis,
    log_axis,
    position,
    short,
    spread_scale,
    unit_axis,
)
from howsure.report.charts import DIAGONAL, evenly, floats, missing_chart, sparsification, sweep
from howsure.report.levels import Levels
from howsure.report.outcomes import Outcome
from howsure.report.values import Axis, Chart, Role, Scale, Series

_LEVELS = tuple(k / 40 for k in range(41))
_BANDS = 80
_BINS = 10


def reliability(outcome: Outcome) -> Chart:
    """Observed against promised probabilities, with what chance allows."""
    key, title = "reliability", "Are the probabilities calibrated?"
    mean, var, target = (t.flatten() for t in (outcome.mean, outcome.var, outcome.target))
    try:
        curve = metrics.calibration_curve(mean, var, target, levels=_LEVELS)
    except ValueError as reason:
        return missing_chart(key, title, str(reason))
    reach = [1.96 * math.sqrt(p * (1 - p) / outcome.inputs) for p in _LEVELS]
    low, high = (
        tuple(min(1.0, max(0.0, p + sign * r)) for p, r in zip(_LEVELS, reach, strict=True))
        for sign in (-1, 1)
    )
    series = (
        Series("chance, 95 %", "band", "ideal", _LEVELS, low, high),
        DIAGONAL,
        Series("observed", "line", "first", _LEVELS, floats(curve.observed)),
    )
    caption = (
        "How many targets lie below each predicted quantile. On the diagonal they "
        "are calibrated; a curve that is flatter in the middle means too sure, a steeper one too "
        "unsure."
    )
    x, y = unit_axis("promised"), unit_axis("observed")
    return Chart(key, title, caption, x, y, series)


def left_out(outcome: Outcome) -> Chart:
    """Error that remains when the least sure predictions are rejected."""
    ranking = {"the least sure rejected": outcome.var.flatten()}
    return sparsification(outcome.error.flatten(), ranking, "Mean error")


def spread(outcomes: Sequence[Outcome]) -> list[Chart]:
    """Observed error in groups of equal predicted std, on one scale for all levels."""
    curves = [_spread_curve(outcome) for outcome in outcomes]
    values = [v for std, rmse in curves for v in (*std, *rmse)]
    scale = spread_scale(values)
    make = log_axis if scale == "log" else _from_zero
    x, y = make("predicted std", values), make("RMSE", values)
    ends = (max(x.low, y.low), min(x.high, y.high))
    same = Series("as promised", "reference", "ideal", ends, ends)
    caption = (
        f"Predictions in {len(curves[0][0])} groups of equal size, from the surest to the least "
        "sure. Above the diagonal the errors are larger than promised."
    )
    title = "Are errors as large as the std says?"

    def chart(std: Sequence[float], rmse: Sequence[float]) -> Chart:
        dots = Series("groups", "points", "first", _placed(std, scale), _placed(rmse, scale))
        return Chart("spread", title, caption, x, y, (same, dots))

    return [chart(*curve) for curve in curves]


def _spread_curve(outcome: Outcome) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, var, target = (t.flatten() for t in (outcome.mean, outcome.var, outcome.target))
    curve = metrics.spread_curve(mean, var, target, bins=min(_BINS, len(var)))
    return floats(curve.std), floats(curve.rmse)


def _from_zero(label: str, values: Sequence[float]) -> Axis:
    return linear_axis(label, values, include=(0.0,))


def _placed(values: Sequence[float], scale: Scale) -> tuple[float, ...]:
    return tuple(position(value, scale) for value in values)


def bands(outcomes: Sequence[Outcome], start: int, case_names: Sequence[str]) -> list[Chart]:
    """Predictions with intervals, sorted by target; the same cases at every level.

    The range is that of the first level shown: wider intervals run out of the picture.
    """
    outcome = outcomes[0]
    order = outcome.target.flatten().argsort(stable=True)
    chosen = order[evenly(len(order), _BANDS)]
    per_input = outcome.target[0].numel()
    names = [str(case_names[int(i)]) for i in chosen // per_input]
    charts = [_band_chart(o, chosen, names) for o in outcomes]
    return [replace(chart, y=charts[start].y) for chart in charts]


def _band_chart(outcome: Outcome, chosen: Tensor, names: Sequence[str]) -> Chart:
    mean, target, data_var, var = (
        t.flatten()[chosen] for t in (outcome.mean, outcome.target, outcome.data_var, outcome.var)
    )
    x = tuple(float(k) for k in range(1, len(chosen) + 1))
    std = var.sqrt()
    rows = zip(names, floats(mean), floats(std), floats(target), strict=True)
    tips = tuple(f"{n}: {short(m)} ± {short(s)}, target {short(t)}" for n, m, s, t in rows)

    def band(name: str, role: Role, half: Tensor) -> Series:
        return Series(name, "band", role, x, floats(mean - half), floats(mean + half))

    series = (
        band("95 % interval", "ideal", 1.96 * std),
        band("of it from the sensor", "first", 1.96 * data_var.sqrt()),
        Series("prediction", "line", "first", x, floats(mean), tips=tips),
        Series("target", "points", "truth", x, floats(target), tips=tips),
    )
    values = [v for each in series for v in (*each.y, *each.upper)]
    caption = (
        f"{len(x)} predictions, sorted by their target. About 95 % of the targets should lie in "
        "the band."
    )
    return Chart(
        "bands",
        "Predictions with their intervals",
        caption,
        linear_axis("rank of the target", x),
        linear_axis("output", values),
        series,
    )


def over_levels(outcomes: Sequence[Outcome], levels: Levels) -> list[Chart]:
    """Predicted std and observed error against the noise."""
    stds = [float(metrics.sharpness(o.var)) for o in outcomes]
    errors = [float(metrics.rmse(o.mean, o.target)) for o in outcomes]
    return sweep(levels, {"predicted std": stds, "RMSE": errors}, "units of the target")
