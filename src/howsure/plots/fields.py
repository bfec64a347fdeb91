"""Optical flow as arrows that show how sure each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from howsure.plots.canvas import colour_bar, frame, prepared
from howsure.plots.images import gray, picture
from howsure.plots.theme import SMALL
from howsure.plots.values import Array, array, variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def flow_arrows(
    image: object,  # (H, W), (1, H, W), (3, H, W) or (H, W, 3)
    flow: object,  # (2, H, W), to the right and downwards, in pixels
    var: object,  # (2, H, W), or (H, W) for the sum of both
    *,
    every: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Axes with an image and arrows of its flow, coloured by their std.

    The std of an arrow is that of its end point, sqrt(var_right + var_down). The longest arrow
    reaches 1.5 times as far as the next one; the words below tell how long it is in pixels.

    Args:
        image: The image that moves, drawn pale.
        flow: By how many pixels each pixel moves.
        var: Variance of the flow.
        every: Distance of arrows in pixels; by default about 20 arrows along the longer side.
        ax: Where to draw; by default a new figure.
    """
    vectors = array("flow", flow, "(2, H, W)")
    std = _std(var, vectors.shape)
    pixels = gray(picture("image", image))
    if pixels.shape != std.shape:
        raise ValueError(
            f"`image` is {pixels.shape[0]} x {pixels.shape[1]} pixels and `flow` is "
            f"{std.shape[0]} x {std.shape[1]}; make them equal."
        )
    step = every if every is not None else max(1, round(max(std.shape) / 20))
    if step < 1:
        raise ValueError(f"`every` is {every}; give a distance of at least 1 pixel.")
    ax, theme = prepared(ax, size=(5.4, 4.2))
    ax.imshow(pixels, cmap="gray", vmin=0, vmax=1, alpha=0.35)
    rows, columns = np.meshgrid(*(np.arange(step // 2, n, step) for n in std.shape), indexing="ij")
    right, down = vectors[:, rows, columns]
    longest = float(np.hypot(right, down).max())
    length = {"angles": "xy", "scale_units": "xy", "scale": (longest or 1) / (1.5 * step)}
    look = {"cmap": theme.scale, "edgecolor": theme.ink, "linewidth": 0.4, "width": 0.007}
    drawn = ax.quiver(columns, rows, right, down, std[rows, columns], **length, **look)
    drawn.set_clim(0, float(std.max()) or 1)
    frame(ax)
    ax.set_xlabel(f"longest arrow: {longest:.3g} pixels", fontsize=SMALL)
    colour_bar(ax, drawn, "std of the flow (pixels)")
    return ax


def _std(var: object, shape: tuple[int, ...]) -> Array:  # (H, W)
    values = variance("var", var)
    if tuple(values.shape) not in (shape, shape[1:]):
        raise ValueError(
            f"`var` has shape {tuple(values.shape)} and `flow` has shape {shape}; give {shape} or "
            f"{shape[1:]}."
        )
    return (values.sum(0) if values.dim() == 3 else values).sqrt().numpy()
