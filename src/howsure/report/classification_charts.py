"""The charts of a classification; those that depend on the noise come one for each level."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from howsure import metrics
from howsure.report.axes import linear_axis, unit_axis
from howsure.report.charts import DIAGONAL, evenly, floats, sparsification, sweep
from howsure.report.levels import Levels
from howsure.report.outcomes import Decisions
from howsure.report.readings import percent
from howsure.report.values import Chart, Series

_BINS = 15
_GROUPS = 10
_CASES = 80


def reliability(seen: Decisions) -> Chart:
    """Accuracy against confidence, in bins of equal width."""
    curve = metrics.reliability_curve(seen.probabilities, seen.target, bins=_BINS)
    filled = curve.fraction > 0
    confidence, accuracy, fraction = (floats(t[filled]) for t in curve)
    rows = zip(confidence, accuracy, fraction, strict=True)
    tips = tuple(
        f"confidence {percent(c)}, accuracy {percent(a)}, {percent(f)} of all" for c, a, f in rows
    )
    observed = Series("", "line", "first", confidence, accuracy, tips=tips)
    dots = Series("observed", "points", "first", confidence, accuracy, tips=tips)
    caption = (
        "How often the predicted class is right, for predictions of equal confidence. Below the "
        "diagonal the network is too sure, above it too unsure."
    )
    x, y = unit_axis("confidence"), unit_axis("accuracy")
    title, series = "Are the probabilities calibrated?", (DIAGONAL, observed, dots)
    return Chart("reliability", title, caption, x, y, series)


def left_out(seen: Decisions) -> Chart:
    """Errors that remain when the least sure predictions are rejected."""
    rankings = {"by entropy": seen.entropy, "by std": seen.std}
    return sparsification(seen.wrong, rankings, "Share of wrong predictions")


def doubt(seen: Decisions) -> Chart:
    """Share of errors in groups from the surest to the least sure."""
    order = seen.entropy.argsort(stable=True)
    groups = order.tensor_split(min(_GROUPS, len(order)))
    doubt = tuple(float(seen.entropy[g].mean()) for g in groups)
    wrong = tuple(float(seen.wrong[g].mean()) for g in groups)
    tips = tuple(
        f"entropy {d:.3f}: {percent(w)} wrong of {len(g)}"
        for d, w, g in zip(doubt, wrong, groups, strict=True)
    )
    series = (
        Series("", "line", "first", doubt, wrong, tips=tips),
        Series("wrong", "points", "first", doubt, wrong, tips=tips),
    )
    caption = (
        f"Predictions in {len(groups)} groups of equal size, by the entropy of their "
        "probabilities. The curve should rise."
    )
    x = linear_axis("entropy, in nats", doubt, include=(0.0,))
    title = "Are unsure predictions wrong more often?"
    return Chart("spread", title, caption, x, unit_axis("wrong"), series)


def bands(decided: Sequence[Decisions], start: int, case_names: Sequence[str]) -> list[Chart]:
    """Winning probabilities with their std, sorted by confidence at the first level shown."""
    order = decided[start].confidence.argsort(stable=True)
    chosen = order[evenly(len(order), _CASES)]
    per_input = len(order) // len(case_names)
    names = [str(case_names[int(i)]) for i in chosen // per_input]
    return [_band_chart(seen, chosen, names) for seen in decided]


def _band_chart(seen: Decisions, chosen: Tensor, names: Sequence[str]) -> Chart:
    confidence, std, wrong = (t[chosen] for t in (seen.confidence, seen.std, seen.wrong))
    x = tuple(float(k) for k in range(1, len(chosen) + 1))
    rows = zip(names, floats(confidence), floats(std), floats(wrong), strict=True)
    tips = [f"{n}: {percent(c)} ± {percent(s)}, {'wrong' if w else 'right'}" for n, c, s, w in rows]
    low, high = ((confidence + s * 1.96 * std).clamp(0, 1) for s in (-1, 1))

    def dots(name: str, where: Tensor) -> Series:
        places = where.nonzero().flatten().tolist()
        values = floats(confidence[where])
        says = tuple(tips[i] for i in places)
        role = "good" if name == "right" else "bad"
        return Series(name, "points", role, tuple(x[i] for i in places), values, tips=says)

    series = (
        Series("95 % interval", "bars", "second", x, floats(low), floats(high)),
        dots("right", wrong == 0),
        dots("wrong", wrong == 1),
    )
    caption = (
        f"Probability of the predicted class for {len(x)} predictions, sorted by it at the "
        "stated noise."
    )
    axis = linear_axis("rank of the confidence", x)
    title = "Winning probabilities with their intervals"
    return Chart("bands", title, caption, axis, unit_axis("probability"), series)


def over_levels(decided: Sequence[Decisions], levels: Levels) -> list[Chart]:
    """Mean confidence and accuracy against the noise."""
    curves = {
        "mean confidence": [float(seen.confidence.mean()) for seen in decided],
        "accuracy": [float(1 - seen.wrong.mean()) for seen in decided],
    }
    return sweep(levels, curves, "share of 1")
