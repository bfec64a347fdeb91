"""What is gained by leaving out the most uncertain predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from howsure import metrics
from howsure.plots.canvas import label, legend, prepared, series
from howsure.plots.theme import Mark, Theme
from howsure.plots.values import Array, by_name, tensor, thinned, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sparsification(
    error: object,  # (...), not negative, or several by name
    uncertainty: object,  # like the error, or several by name
    *,
    normalise: bool = True,
    points: int = 1000,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the mean error of what remains, the oracle, and the area between them (AUSE).

    See `metrics.sparsification_curve` and `metrics.ause`.

    Args:
        error: Error of each prediction, such as |target - mean|; 1 where a class is wrong. One
            for all methods, or a dict with the methods' names.
        uncertainty: Variance, or anything that rises with it.
        normalise: Divides by the mean error, so that all curves begin at 1.
        points: How many points of a curve are drawn at most, evenly spaced.
        ax: Where to draw; by default a new figure.
    """
    methods = by_name(uncertainty)
    errors = _error_of_each(error, methods)
    curves = {name: _curve(errors[name], u, normalise, points) for name, u in methods.items()}
    ax, theme = prepared(ax)
    for index, (name, (removed, remaining, oracle, area)) in enumerate(curves.items()):
        mark = theme.mark(index)
        series(ax, removed, remaining, index, titled(name, f"AUSE {area:.3g}"))
        _draw_oracle(ax, theme, mark, (removed, oracle), shared=not isinstance(error, Mapping))
        if len(curves) == 1:
            ax.fill_between(
                removed, oracle, remaining, facecolor=mark.colour, alpha=0.25, linewidth=0
            )
    label(ax, "share of the most uncertain rejected", _quantity(normalise))
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    legend(ax)
    return ax


def _error_of_each(error: object, methods: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(error, Mapping):
        return dict.fromkeys(methods, error)
    if set(map(str, error)) != set(methods):
        raise ValueError(
            f"`error` has the names {list(error)} and `uncertainty` has {list(methods)}; give "
            "both for every method, or one error for all."
        )
    return by_name(error)


def _curve(
    error: object, uncertainty: object, normalise: bool, points: int
) -> tuple[Array, Array, Array, float]:
    """Share removed, mean error that remains, the oracle's, and AUSE."""
    both = tensor("error", error), tensor("uncertainty", uncertainty)
    curve = metrics.sparsification_curve(*both, normalise=normalise)
    area = float(metrics.ause(*both, normalise=normalise))
    removed, remaining, oracle = thinned(*(column.numpy() for column in curve), most=points)
    return removed, remaining, oracle, area


def _draw_oracle(
    ax: Axes, theme: Theme, mark: Mark, curve: tuple[Array, Array], *, shared: bool
) -> None:
    """The best possible order; once if the error is the same for all methods."""
    known = "oracle" in ax.get_legend_handles_labels()[1]
    if shared and known:
        return
    colour = theme.ink if shared else mark.colour
    name = None if known else "oracle"
    ax.plot(*curve, color=colour, linewidth=1, linestyle=(0, (1, 1)), label=name)


def _quantity(normalise: bool) -> str:
    return "mean error of the rest" + (" / mean error" if normalise else "")
