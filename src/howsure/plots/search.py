"""The search of the dropout rate, as a curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from howsure.fit import Fit
from howsure.plots.canvas import label, legend, prepared
from howsure.plots.theme import Theme
from howsure.plots.values import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rate_search(
    fit: Fit,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the NLL at every rate that was tried, its standard error, and the best rate.

    `fit` is what `Uncertain.fit` returns and `Uncertain.last_fit` keeps. Where every dropout site
    has a rate of its own, a line shows what they reach together. A rate of 0 stands at the left
    end of the otherwise logarithmic axis. Rates whose NLL is not finite, as with a variance
    of 0, are left out, and the label of the axis counts them.
    """
    if not isinstance(fit, Fit):
        raise TypeError(
            f"`fit` is a {type(fit).__name__}; pass what `Uncertain.fit` returns, also kept as "
            "`Uncertain.last_fit`."
        )
    if fit.rate is None:
        raise ValueError("This method has no rate, so there is no search to plot.")
    columns = np.array([fit.rates, fit.nll, fit.standard_error], dtype=float)
    columns = columns[:, columns[0].argsort(kind="stable")]
    shown = columns[:, np.isfinite(columns[1])]
    ax, theme = prepared(ax)
    _draw_curve(ax, theme, *shown)
    _draw_best(ax, theme, fit)
    left_out = columns.shape[1] - shown.shape[1]
    note = f" ({left_out} not finite)" if left_out else ""
    label(ax, f"dropout rate{note}", "NLL of held-out data")
    _set_scales(ax, shown[0], shown[1])
    legend(ax)
    return ax


def _draw_curve(ax: Axes, theme: Theme, rates: Array, nll: Array, error: Array) -> None:
    mark = theme.mark(0)
    known = np.where(np.isfinite(error), error, 0.0)  # one input alone has no standard error
    band = {"facecolor": mark.colour, "alpha": 0.25, "linewidth": 0}
    ax.fill_between(rates, nll - known, nll + known, **band, label="± standard error")
    ax.plot(rates, nll, color=mark.colour, marker=mark.marker, markersize=4, label="NLL")


def _draw_best(ax: Axes, theme: Theme, fit: Fit) -> None:
    """A star at the best rate, or a line at what one rate for each dropout site reaches."""
    mark, rate = theme.mark(1), fit.rate
    if isinstance(rate, tuple):
        name = f"a rate for each site, {min(rate):.3g} to {max(rate):.3g}"
        ax.axhline(fit.best_nll, color=mark.colour, linestyle=mark.line, label=name)
    elif rate is not None:
        # In closed form the best rate can lie between two that were tried.
        best = fit.nll[fit.rates.index(rate)] if rate in fit.rates else fit.best_nll
        star = {"marker": "*", "markersize": 15, "linestyle": "none", "markeredgecolor": theme.ink}
        name = f"best rate {rate:.3g}"
        ax.plot(rate, best, color=mark.colour, **star, zorder=4, label=name)


def _set_scales(ax: Axes, rates: Array, nll: Array) -> None:
    """Rates on a log axis that has a 0 if needed; a wide range of the NLL compressed."""
    positive = rates[rates > 0]
    if len(positive) == len(rates):
        ax.set_xscale("log")
    elif len(positive):
        ax.set_xscale("symlog", linthresh=float(positive.min()), linscale=0.4)
        ax.set_xlim(left=-0.1 * float(positive.min()))
    # Small rates can give a variance near 0 and an NLL that dwarfs the minimum.
    middle = float(np.median(nll) - nll.min())
    if middle > 0 and np.ptp(nll) > 30 * middle:
        ax.set_yscale("symlog", linthresh=max(1.0, float(np.abs(nll).min())))
