"""Axes of charts: round ticks, and one range for all noise levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from howsure.report.values import Axis, Chart, Scale

# Values that span more than this factor get a logarithmic axis.
_WIDE = 8.0


def short(value: float) -> str:
    """A number with three significant digits, as a person would write it."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if 1e-4 <= size < 1e5:
        decimals = max(0, 2 - math.floor(math.log10(size)))
        return f"{value:.{decimals}f}".replace("-", "−")
    return f"{value:.2e}".replace("-", "−")


def linear_axis(label: str, values: Iterable[float], *, include: Sequence[float] = ()) -> Axis:
    """An axis from the smallest to the largest value, with a little room."""
    found = [v for v in (*values, *include) if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    room = 0.04 * (high - low)
    low, high = (v if v in include else v + r for v, r in ((low, -room), (high, room)))
    return Axis(label, low, high, _round_ticks(low, high))


def unit_axis(label: str) -> Axis:
    """An axis from 0 to 1, in percent."""
    ticks = tuple((k / 4, f"{25 * k} %") for k in range(5))
    return Axis(label, 0.0, 1.0, ticks, "percent")


def log_axis(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis for positive values."""
    logs = [math.log10(v) for v in values if v > 0 and math.isfinite(v)] or [0.0, 1.0]
    low, high = min(logs), max(logs)
    room = 0.04 * (high - low) or 0.3
    return Axis(label, low - room, high + room, _log_ticks(low - room, high + room), "log")


def spread_scale(values: Iterable[float]) -> Scale:
    """Logarithmic where all values are positive and some are far larger than others."""
    found = list(values)
    if not found or min(found) <= 0:
        return "linear"
    return "log" if max(found) > _WIDE * min(found) else "linear"


def position(value: float, scale: Scale) -> float:
    """Where a value lies on an axis."""
    return math.log10(value) if scale == "log" else value


def with_common_axes(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts with one range, so that a change of level moves the curves only."""
    drawn = [chart for chart in charts if chart.series]
    if not drawn:
        return list(charts)
    x, y = (_union([getattr(chart, name) for chart in drawn]) for name in ("x", "y"))
    return [replace(chart, x=x, y=y) if chart.series else chart for chart in charts]


def _union(axes: Sequence[Axis]) -> Axis:
    first = axes[0]
    low, high = min(a.low for a in axes), max(a.high for a in axes)
    if (low, high) == (first.low, first.high):
        return first
    ticks = _log_ticks(low, high) if first.scale == "log" else _round_ticks(low, high)
    return replace(first, low=low, high=high, ticks=ticks)


def _round_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Four to eight multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    # Beyond plain decimals the numbers would be longer than the distance between them.
    form = f".{decimals}f" if decimals < 5 and abs(high) < 1e6 else ".2g"
    ticks = [(k * step, format(k * step, form)) for k in range(first, last + 1)]
    return tuple((place, label.replace("-", "−")) for place, label in ticks)


def _log_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Powers of ten; where there are few of them, also 2 and 5 times these."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    step = max(1, round((high - low) / 6)) if factors == (1,) else 1
    values = [m * 10.0**k for k in powers if k % step == 0 for m in factors]
    return tuple((math.log10(v), f"{v:g}") for v in values if low <= math.log10(v) <= high)
