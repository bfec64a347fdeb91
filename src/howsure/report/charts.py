"""Charts that both tasks share: sparsification, and the sweep over noise levels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from howsure.metrics import sparsification_curve
from howsure.report.axes import linear_axis, log_axis, position, unit_axis, with_common_axes
from howsure.report.levels import Levels
from howsure.report.values import Axis, Chart, Metric, Series, View

# Points per curve: more would not be seen, and every level and output has its own.
_POINTS = 60

_ADDED = (
    "Does the uncertainty follow the noise?",
    "A better and a worse sensor: as much noise as is assumed is added to the inputs. Where the "
    "curves part, the uncertainty no longer follows the errors. Diamonds mark the level shown.",
)
_ASSUMED = (
    "Which noise fits the errors?",
    "The inputs stay as they are, only the noise that is assumed changes. Where the curves meet, "
    "it fits the errors. Diamonds mark the level shown.",
)

DIAGONAL = Series("as promised", "reference", "ideal", (0.0, 1.0), (0.0, 1.0))


def floats(values: Tensor) -> tuple[float, ...]:
    """A vector as plain numbers."""
    return tuple(values.flatten().tolist())


def evenly(count: int, wanted: int = _POINTS) -> Tensor:
    """Up to `wanted` positions among `count`, first and last included."""
    return torch.linspace(0, count - 1, min(count, wanted)).round().long()


def missing_chart(key: str, title: str, reason: str) -> Chart:
    """An empty chart whose caption says why it is empty."""
    nothing = Axis("", 0.0, 1.0, ())
    return Chart(key, title, f"Not defined here: {reason}", nothing, nothing, ())


def views_of(
    numbers: Sequence[Sequence[Metric]],
    families: Iterable[Sequence[Chart]],
    headline: Callable[[Sequence[Metric]], tuple[str, ...]],
) -> list[View]:
    """One view for each noise level, from its numbers and its chart of each family."""
    by_level = zip(*(with_common_axes(family) for family in families), strict=True)
    return [
        View(headline(rows), tuple(rows), tuple(of_level))
        for rows, of_level in zip(numbers, by_level, strict=True)
    ]


def sparsification(
    error: Tensor,  # (n,)
    rankings: dict[str, Tensor],  # each (n,)
    what: str,
) -> Chart:
    """The error that remains when the least sure predictions are rejected."""
    key, title = "sparsification", "Does it know where it is wrong?"
    try:
        curves = [sparsification_curve(error, ranking) for ranking in rankings.values()]
    except ValueError as reason:
        return missing_chart(key, title, str(reason))
    places = evenly(len(curves[0].removed))
    removed = floats(curves[0].removed[places])
    series = [Series("no ranking", "reference", "ideal", (0.0, 1.0), (1.0, 1.0))]
    series.append(
        Series("the worst rejected", "line", "truth", removed, floats(curves[0].oracle[places]))
    )
    for (name, curve), role in zip(
        zip(rankings, curves, strict=True), ("first", "second"), strict=False
    ):
        series.append(Series(name, "line", role, removed, floats(curve.error[places])))
    heights = [y for each in series for y in each.y]
    caption = (
        f"{what}, relative to that of all predictions, when the least sure ones are rejected. The "
        "faster it falls, the better the uncertainty ranks the predictions."
    )
    y = linear_axis("error of the rest", heights, include=(0.0,))
    return Chart(key, title, caption, unit_axis("rejected"), y, tuple(series))


def sweep(levels: Levels, curves: Mapping[str, Sequence[float]], unit: str) -> list[Chart]:
    """Charts of the same two curves over all levels, one for each level, which it marks.

    Args:
        levels: The noise levels.
        curves: What is predicted and what is observed, by name.
        unit: The label of the y axis.
    """
    factors = levels.factors
    scale = "log" if min(factors) > 0 else "linear"
    make = log_axis if scale == "log" else linear_axis
    x = make("noise std, in multiples of the stated one", factors)
    x = replace(x, ticks=tuple((position(k, scale), f"× {k:g}") for k in factors))
    y = linear_axis(unit, [v for values in curves.values() for v in values], include=(0.0,))
    places = tuple(position(factor, scale) for factor in factors)
    lines = tuple(
        Series(name, "line", role, places, tuple(values))
        for (name, values), role in zip(curves.items(), ("first", "truth"), strict=False)
    )
    title, caption = _ADDED if levels.added else _ASSUMED
    return [
        Chart("sweep", title, caption, x, y, (*lines, *_marked(curves, places, i)))
        for i in range(len(levels))
    ]


def _marked(
    curves: Mapping[str, Sequence[float]], places: tuple[float, ...], index: int
) -> tuple[Series, ...]:
    heights = tuple(float(values[index]) for values in curves.values())
    return (Series("this level", "points", "now", (places[index],) * len(heights), heights),)
