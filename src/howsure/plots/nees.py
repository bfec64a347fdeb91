"""Whether a filter, or a network's covariance, is consistent over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from howsure import metrics
from howsure.plots.canvas import label, legend, prepared, series
from howsure.plots.theme import Theme
from howsure.plots.values import Array, array, by_name, same_length, tensor, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def consistency(
    squared: object,  # (steps,) or (runs, steps), or several by name
    dof: int,
    *,
    times: object = None,  # (steps,)
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the NEES or NIS at every step, averaged over runs, and its chi-square band.

    A consistent filter is inside the band at `level` of the steps, and below it is less sure than
    it could be, above it too sure. See `metrics.squared_mahalanobis` and `metrics.chi_square_band`.

    Args:
        squared: Squared Mahalanobis distances of each run and step; runs must be independent.
        dof: Length of an error vector, on average their squared distance.
        times: When the steps were; by default they are counted.
        level: The probability inside the band.
        ax: Where to draw; by default a new figure.
    """
    rows = {name: _runs(value) for name, value in by_name(squared).items()}
    sizes = {row.shape for row in rows.values()}
    if len(sizes) > 1:
        raise ValueError(f"The runs have the shapes {sorted(sizes)}; all must have the same.")
    count, steps = next(iter(sizes))
    low, high = metrics.chi_square_band(dof, count=count, level=level)
    x = np.arange(float(steps)) if times is None else array("times", times, "(n,)")
    same_length(times=x, squared=np.empty(steps))
    ax, theme = prepared(ax)
    _draw_band(ax, theme, (low, high), dof, f"{100 * level:g} % band")
    for index, (name, row) in enumerate(rows.items()):
        mean = row.mean(0)
        inside = float(((low <= mean) & (mean <= high)).mean())
        series(ax, x, mean, index, titled(name, f"{100 * inside:.0f} % of steps inside"))
    _scale(ax, np.concatenate([row.mean(0) for row in rows.values()]), high)
    over = f", mean of {count} runs" if count > 1 else ""
    label(ax, "step" if times is None else "time", f"normalised error squared{over}")
    legend(ax)
    return ax


def _runs(value: object) -> Array:  # (runs, steps)
    found = tensor("squared", value)
    if found.dim() not in (1, 2) or found.numel() == 0 or bool((found < 0).any()):
        raise ValueError(
            f"`squared` has shape {tuple(found.shape)}; give squared distances, not negative, of "
            "shape (steps,) or (runs, steps)."
        )
    return found.reshape(-1, found.shape[-1]).numpy()


def _draw_band(ax: Axes, theme: Theme, band: tuple[float, float], dof: int, name: str) -> None:
    ax.axhspan(*band, facecolor=theme.muted, alpha=0.45, linewidth=0, label=name)
    dashes = {"color": theme.ink, "linewidth": 1, "linestyle": (0, (2, 2))}
    ax.axhline(dof, **dashes, label=f"consistent: {dof}")


def _scale(ax: Axes, values: Array, high: float) -> None:
    """Logarithmic where one method is so far off that the band would vanish."""
    if values.max() > 10 * high and values.min() > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
