"""Whether predicted variances and probabilities mean what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from howsure import metrics
from howsure.metrics.calibration import PERCENT
from howsure.plots.canvas import diagonal, equal_scales, label, legend, prepared, series
from howsure.plots.values import Array, Predicted, by_name, mean_and_var, tensor, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    predicted: Predicted | Mapping[str, Predicted],
    target: object,  # like the mean
    *,
    levels: Sequence[float] = PERCENT,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the calibration curve of each method and its miscalibration area.

    How many targets lie below each predicted quantile, against how many should: on the diagonal
    if calibrated. See `metrics.calibration_curve` and `metrics.miscalibration_area`.
    """
    truth, methods = tensor("target", target), by_name(predicted)
    curves = {name: _calibration(entry, truth, levels) for name, entry in methods.items()}
    ax, theme = prepared(ax, size=(4.6, 4.2))
    diagonal(ax, 0, 1, "calibrated")
    for index, (name, (promised, observed, area)) in enumerate(curves.items()):
        series(ax, promised, observed, index, titled(name, f"area {area:.3f}"))
        if len(curves) == 1:
            area_between = {"facecolor": theme.mark(0).colour, "alpha": 0.25, "linewidth": 0}
            ax.fill_between(promised, promised, observed, **area_between)
    label(ax, "predicted probability", "share of targets below the quantile")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    legend(ax)
    return ax


def _calibration(
    predicted: Predicted, target: Tensor, levels: Sequence[float]
) -> tuple[Array, Array, float]:
    mean, var = mean_and_var(predicted)
    curve = metrics.calibration_curve(mean, var, target, levels=levels)
    area = metrics.miscalibration_area(mean, var, target, levels=levels)
    return curve.levels.numpy(), curve.observed.numpy(), float(area)


def confidence(
    probabilities: object,  # (batch, classes, ...), or several by name
    target: object,  # (batch, ...), class indices
    *,
    bins: int = 15,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the accuracy against the confidence of each method, and its ECE.

    Bins of equal width, empty ones left out; larger points have more predictions. See
    `metrics.reliability_curve` and `metrics.ece`.
    """
    truth = torch.as_tensor(target).detach().cpu()
    rows = {name: tensor("probabilities", p) for name, p in by_name(probabilities).items()}
    curves = {name: metrics.reliability_curve(p, truth, bins=bins) for name, p in rows.items()}
    errors = {name: float(metrics.ece(p, truth, bins=bins)) for name, p in rows.items()}
    ax, theme = prepared(ax, size=(4.6, 4.2))
    diagonal(ax, 0, 1, "calibrated")
    for index, (name, curve) in enumerate(curves.items()):
        mark, full = theme.mark(index), curve.fraction.numpy() > 0
        x, y, share = (column.numpy()[full] for column in curve)
        series(ax, x, y, index, titled(name, f"ECE {errors[name]:.3f}"))
        ax.scatter(
            x, y, s=20 + 180 * share, marker=mark.marker, color=mark.colour, zorder=3, clip_on=False
        )
    label(ax, "confidence", "accuracy")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    legend(ax)
    return ax


def std_vs_error(
    predicted: Predicted | Mapping[str, Predicted],
    target: object,  # like the mean
    *,
    bins: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Axes with the RMSE of each bin against its predicted std; the diagonal is right.

    Bins hold equally many predictions, sorted by variance; below the diagonal the method is less
    sure than it could be, above it too sure. See `metrics.spread_curve` and `metrics.ence`.
    """
    truth, methods = tensor("target", target), by_name(predicted)
    curves = {
        name: [column.numpy() for column in metrics.spread_curve(*both, truth, bins=bins)]
        for name, both in ((name, mean_and_var(entry)) for name, entry in methods.items())
    }
    ax, _ = prepared(ax, size=(4.6, 4.2))
    values = np.concatenate([x for curve in curves.values() for x in curve])
    ends = equal_scales(ax, values, log=bool(values.max() > 20 * values.min()))
    diagonal(ax, *ends, "as sure as it should be")
    for index, (name, (std, rmse)) in enumerate(curves.items()):
        series(ax, std, rmse, index, name or "measured")
    label(ax, "predicted std", "RMSE in the bin")
    legend(ax, title=_count_per_bin(truth.numel(), bins))
    return ax


def _count_per_bin(count: int, bins: int) -> str:
    least, most = count // bins, -(-count // bins)
    each = f"{least}" if least == most else f"{least} or {most}"
    return f"{bins} bins of {each} predictions"
