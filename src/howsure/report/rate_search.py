"""The chart of the rate search: the likelihood of held-out data at every dropout rate."""

from __future__ import annotations

import math
from dataclasses import replace

from howsure.fit import Fit
from howsure.report.axes import linear_axis, log_axis, short
from howsure.report.values import Axis, Chart, Series


def rate_search(fit: Fit) -> Chart | None:
    """The curve of a search, with its standard error and the best rate; `None` without a curve."""
    rows = zip(fit.rates, fit.nll, fit.standard_error, strict=True)
    known = [(r, n, e if math.isfinite(e) else 0.0) for r, n, e in rows if math.isfinite(r + n)]
    if fit.rate is None or len(known) < 2:
        return None
    best = _best(fit)
    rates, nll = (tuple(row[i] for row in known) for i in (0, 1))
    x = _rate_axis([*rates, *(r for r, _ in best)])
    places = tuple(_place(rate, x) for rate in rates)
    tips = tuple(f"rate {short(r)}: NLL {short(n)} ± {short(e)}" for r, n, e in known)
    low, high = (tuple(n + sign * e for _, n, e in known) for sign in (-1, 1))
    series = [
        Series("standard error", "band", "first", places, low, high),
        Series("NLL", "line", "first", places, nll, tips=tips),
    ]
    for rate, value in best:
        says = (f"best rate {short(rate)}: NLL {short(value)}",)
        series.append(Series("best", "points", "now", (_place(rate, x),), (value,), tips=says))
    y = linear_axis("NLL per target", (*low, *high, *(value for _, value in best)))
    title = "Which dropout rate explains the errors?"
    return Chart("search", title, _caption(fit), x, y, tuple(series))


def _caption(fit: Fit) -> str:
    found = (
        f"{len(fit.rate)} rates were found, one for each site"
        if isinstance(fit.rate, tuple)
        else f"The best rate is {short(fit.rate or 0.0)}"
    )
    return (
        f"Negative log-likelihood of {fit.count:,} held-out inputs at each rate; lower is better. "
        f"{found}."
    )


def _best(fit: Fit) -> list[tuple[float, float]]:
    """The best rate with its NLL: a point of the curve, or one between two of them."""
    if fit.rate is None or isinstance(fit.rate, tuple):
        return []
    if fit.rate in fit.rates:
        return [(fit.rate, fit.nll[fit.rates.index(fit.rate)])]
    return [(fit.rate, fit.best_nll)] if math.isfinite(fit.best_nll) else []


def _rate_axis(rates: list[float]) -> Axis:
    """A logarithmic axis on which the rate 0 stands left of the others."""
    axis = log_axis("dropout rate", [rate for rate in rates if rate > 0])
    if min(rates) > 0:
        return axis
    zero = axis.low - 0.08 * (axis.high - axis.low)
    return replace(axis, low=zero, ticks=((zero, "0"), *axis.ticks))


def _place(rate: float, axis: Axis) -> float:
    return math.log10(rate) if rate > 0 else axis.low
