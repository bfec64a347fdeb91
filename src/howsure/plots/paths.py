"""A path in the plane: how sure every point is, and where it was rejected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsure.plots.theme import color_bar, finish, prepared
from howsure.plots.values import Array, array, same_length, tensor, variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ELLIPSES = 12
# Half axes of the ellipse that covers 95 % of a Gaussian in the plane, in stds.
_REACH = math.sqrt(-2 * math.log(0.05))


def trajectory(
    path: object,  # (n, 2)
    var: object,  # (n,), (n, 2) or (n, 2, 2)
    *,
    truth: object = None,  # (m, 2)
    trusted: object = None,  # (n,), bool
    ax: Axes | None = None,
) -> Axes:
    """Axes with a path colored by its std, 95 % ellipses, and the spans that were rejected.

    The std of a point is sqrt((var_x + var_y) / 2), and the line grows with it.

    Args:
        path: Points of the predicted path, in order.
        var: Variance of each point, the same in all directions (n,), by coordinate (n, 2), or as
            covariance (n, 2, 2), such as `prediction.covariance`.
        truth: The true path.
        trusted: Where the prediction was trusted, such as what a `Gate` returns; other points get
            a cross.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> path = torch.stack([torch.arange(5.0), torch.zeros(5)], 1)
        >>> ax = hs.plots.trajectory(path, 0.01 * torch.ones(5, 2))
        >>> len(ax.collections) > 0
        True
    """
    points = array("path", path, "(n, 2)")
    count = len(points)
    covariance = _covariances(var, count)
    passed = np.ones(count, bool)
    if trusted is not None:
        passed = array("trusted", trusted, "(n,)").astype(bool)
        same_length(path=points, trusted=passed)
    real = None if truth is None else array("truth", truth, "(m, 2)")
    ax, theme = prepared(ax, size=(5.6, 4.2))
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Ellipse

    if real is not None:
        ax.plot(*real.T, color=theme.ink, linewidth=1, linestyle=(0, (3, 2)), label="truth")
    # Some ellipses along the path, first and last included; a variance of 0 has none.
    for i in np.unique(np.linspace(0, count - 1, _ELLIPSES).round().astype(int)).tolist():
        size, axes = np.linalg.eigh(covariance[i])
        # Rounding can leave a flat ellipse with an eigenvalue just below 0.
        width, height = 2 * _REACH * np.sqrt(size.clip(0))
        angle = math.degrees(math.atan2(axes[1, 0], axes[0, 0]))
        ellipse = Ellipse(tuple(points[i]), width, height, angle=angle, alpha=0.3, linewidth=0.6)
        ellipse.set(facecolor=theme.muted, edgecolor=theme.ink, label="" if i else "95 % ellipse")
        ax.add_patch(ellipse)
    # A stroke from point to point, colored and as wide as the std between them says.
    std = np.sqrt(np.trace(covariance, axis1=1, axis2=2) / 2)
    between, largest = (std[:-1] + std[1:]) / 2, float(std.max()) or 1.0
    strokes = list(np.stack([points[:-1], points[1:]], axis=1))
    widths = 1.5 + 3.5 * between / largest
    lines = LineCollection(strokes, cmap=theme.scale, linewidths=widths, capstyle="round")
    lines.set_array(between)
    lines.set_clim(0, largest)
    ax.add_collection(lines)
    ax.update_datalim(points)
    if not passed.all():
        # A light cross on a dark one is seen on any line.
        cross = {"marker": "X", "color": theme.mark(1).color, "s": 60, "linewidths": 0.9}
        style = {**cross, "edgecolors": theme.background, "zorder": 4, "label": "rejected"}
        ax.scatter(*points[~passed].T, **style)
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="datalim")
    color_bar(ax, lines, "std")
    return finish(ax, "x", "y")


def _covariances(var: object, count: int) -> Array:  # (n, 2, 2)
    values = tensor("var", var)
    if values.shape == (count,):
        values = values.unsqueeze(1).expand(count, 2)
    if values.shape == (count, 2):
        values = torch.diag_embed(values)
    if values.shape != (count, 2, 2):
        raise ValueError(
            f"`var` has shape {tuple(values.shape)} for {count} points; give ({count},), "
            f"({count}, 2) or ({count}, 2, 2)."
        )
    variance("var", values.diagonal(dim1=1, dim2=2))
    return values.numpy()
