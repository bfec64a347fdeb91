"""Images with the uncertainty of their pixels, of their motion, and of what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.plots.theme import (
    NORMAL,
    SMALL,
    Theme,
    color_bar,
    current,
    frame,
    new_figure,
    prepared,
)
from howsure.plots.values import Array, array, same_length, tensor, variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Negative pixels of a budget may have this share of the sum of the others: 8 points leave 3 % on a
# DroNet, 64 points 0.1 %.
_CHANCE = 0.2
_COLUMNS = 6
_GRAY: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1}
Grid = NDArray[np.object_]


def heatmap(
    image: object,  # (H, W), (1, H, W), (3, H, W) or (H, W, 3)
    var: object,  # (H, W) or (C, H, W)
    *,
    overlay: bool = False,
    label: str = "variance",
    ax: Axes | None = None,
) -> Axes:
    """Axes with an image and, beside it or over it, the variance of each pixel.

    Args:
        image: Gray or color; whole numbers from 0 to 255, or real numbers, which are stretched
            to [0, 1] if they leave it.
        var: Variance of each pixel, for example `budget.heatmap()[i, k]` or the variance of a
            depth map; channels are added up. A budget's pixels are estimates and can be slightly
            negative by chance, which is drawn as 0.
        overlay: Lay the variance over the image in gray, with a line around the pixels at or
            above half of the largest; otherwise both stand side by side.
        label: What the colors show.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> ax = hs.plots.heatmap(torch.rand(8, 8), torch.rand(8, 8), overlay=True)
        >>> len(ax.images) > 0
        True
    """
    pixels, heat = picture("image", image), _per_pixel(var)
    _check_size(pixels, var=heat)
    ax, theme = prepared(ax, size=(4.4, 3.6) if overlay else (7.0, 3.4))
    height, width = heat.shape
    place = (0, width, height, 0)
    if overlay:
        # The larger the variance, the less transparent.
        largest = float(heat.max())
        ax.imshow(gray(pixels), **_GRAY, extent=place)
        look = {"vmin": 0, "vmax": largest or 1, "alpha": 0.9 * np.sqrt(heat / (largest or 1))}
        drawn = ax.imshow(heat, cmap=theme.scale, extent=place, **look)
        if largest:
            _draw_borders(ax, theme, heat >= largest / 2)
    else:
        ax.imshow(pixels, **_GRAY, extent=place)
        left, right = 1.06 * width, 2.06 * width
        drawn = ax.imshow(heat, cmap=theme.scale, vmin=0, extent=(left, right, height, 0))
        ax.set(xlim=(0, right), ylim=(height, 0))
    frame(ax)
    ax.spines[:].set_visible(overlay)
    color_bar(ax, drawn, label)
    return ax


def flow_arrows(
    image: object,  # (H, W), (1, H, W), (3, H, W) or (H, W, 3)
    flow: object,  # (2, H, W), to the right and downwards, in pixels
    var: object,  # (2, H, W), or (H, W) for the sum of both
    *,
    every: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Axes with an image and arrows of its flow, colored by their std.

    The std of an arrow is that of its end point, sqrt(var_right + var_down). The longest arrow
    reaches 1.5 times as far as the next one; the words below tell how long it is in pixels.

    Args:
        image: The image that moves, drawn pale.
        flow: By how many pixels each pixel moves.
        var: Variance of the flow.
        every: Distance of arrows in pixels; by default about 20 arrows along the longer side.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> image, flow = torch.zeros(8, 8), torch.ones(2, 8, 8)
        >>> ax = hs.plots.flow_arrows(image, flow, 0.01 * torch.ones(2, 8, 8), every=4)
        >>> len(ax.images)
        1
    """
    vectors = array("flow", flow, "(2, H, W)")
    spread, shape = variance("var", var), vectors.shape
    if tuple(spread.shape) not in (shape, shape[1:]):
        raise ValueError(
            f"`var` has shape {tuple(spread.shape)} and `flow` has shape {shape}; give {shape} or "
            f"{shape[1:]}."
        )
    std = (spread.sum(0) if spread.dim() == 3 else spread).sqrt().numpy()
    pixels = gray(picture("image", image))
    _check_size(pixels, flow=std)
    step = every if every is not None else max(1, round(max(std.shape) / 20))
    if step < 1:
        raise ValueError(f"`every` is {every}; give a distance of at least 1 pixel.")
    ax, theme = prepared(ax, size=(5.4, 4.2))
    ax.imshow(pixels, **_GRAY, alpha=0.35)
    rows, columns = np.meshgrid(*(np.arange(step // 2, n, step) for n in std.shape), indexing="ij")
    right, down = vectors[:, rows, columns]
    longest = float(np.hypot(right, down).max())
    length = {"angles": "xy", "scale_units": "xy", "scale": (longest or 1) / (1.5 * step)}
    look = {"cmap": theme.scale, "edgecolor": theme.ink, "linewidth": 0.4, "width": 0.007}
    drawn = ax.quiver(columns, rows, right, down, std[rows, columns], **length, **look)
    drawn.set_clim(0, float(std.max()) or 1)
    frame(ax)
    ax.set_xlabel(f"longest arrow: {longest:.3g} pixels", fontsize=SMALL)
    color_bar(ax, drawn, "std of the flow (pixels)")
    return ax


def gallery(
    images: Any,  # (n, H, W), (n, 1, H, W), (n, 3, H, W) or (n, H, W, 3)
    uncertainty: object,  # (n,)
    *,
    captions: Sequence[str] | None = None,
    correct: object = None,  # (n,), bool
    label: str = "uncertainty",
    axes: Grid | None = None,
) -> Grid:
    """Axes (2, columns) with the surest predictions above and the least sure ones below.

    Both rows go from the extreme inwards. No prediction is in both rows.

    Args:
        images: What was predicted from.
        uncertainty: One number for each, such as a std or an entropy.
        captions: Words above each image, such as what was predicted.
        correct: Whether the prediction is right; wrong ones get a thick frame and the word
            "wrong".
        label: What the number below each image is.
        axes: Two rows of Axes; by default a new figure with 6 columns, or fewer for few images.

    Examples:
        >>> images, entropy = torch.rand(6, 1, 8, 8), torch.arange(6.0)
        >>> axes = hs.plots.gallery(images, entropy, label="entropy")
        >>> axes.shape[0]
        2
    """
    values = array("uncertainty", uncertainty, "(n,)")
    right = np.ones(len(values)) if correct is None else array("correct", correct, "(n,)")
    same_length(images=images, uncertainty=values, correct=right, captions=captions)
    if axes is None:
        columns = max(1, min(_COLUMNS, len(values) // 2))
        axes = new_figure((1.45 * columns + 0.4, 3.9)).subplots(2, columns, squeeze=False)
    grid: Grid = np.asarray(axes, dtype=object)
    if grid.ndim != 2 or len(grid) != 2 or grid.size == 0:
        raise ValueError(
            f"`axes` has shape {grid.shape}; give two rows, such as `figure.subplots(2, 6)`."
        )
    order = values.argsort(kind="stable").tolist()
    least_sure = order[::-1][: min(grid.shape[1], len(order) // 2)]
    surest = order[: min(grid.shape[1], len(order) - len(least_sure))]
    for row, chosen, title in zip(
        grid, (surest, least_sure), ("surest", "least sure"), strict=True
    ):
        for ax in row[len(chosen) :]:
            ax.set_axis_off()
        for ax, i in zip(row, chosen, strict=False):
            ax, theme = prepared(ax)
            ax.imshow(picture("images", images[i]), **_GRAY)
            frame(ax)
            caption = "" if captions is None else str(captions[i])
            if not right[i]:
                ax.spines[:].set(color=theme.mark(1).color, linewidth=3)
                caption = f"{caption} (wrong)" if caption else "wrong"
            ax.set_title(caption, fontsize=SMALL, color=theme.ink)
            ax.set_xlabel(f"{label} {values[i]:.3g}", fontsize=SMALL)
        row[0].set_ylabel(title, fontsize=NORMAL, weight="bold", color=current().ink)
    return grid


def picture(name: str, image: object) -> Array:  # (H, W) or (H, W, 3), from 0 to 1
    """An image as matplotlib wants it, channels last.

    Bytes are divided by 255, other values stretched if they leave [0, 1].
    """
    values = tensor(name, image)
    shape = tuple(values.shape)
    if len(shape) == 3 and shape[0] in (1, 3):
        values = values.movedim(0, -1)
    if values.dim() == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if not (values.dim() == 2 or values.shape[2:] == (3,)) or 0 in shape:
        raise ValueError(
            f"`{name}` has shape {shape}; give one image, (H, W), (1, H, W), (3, H, W) or "
            "(H, W, 3)."
        )
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 255 or (high > 1 and bool((values != values.round()).any())):
        values = (values - low) / (high - low) if high > low else torch.full_like(values, 0.5)
    elif high > 1:
        values = values / 255
    return values.numpy()


def gray(pixels: Array) -> Array:
    """The luma of an image, (H, W) (ITU-R BT.601)."""
    return pixels if pixels.ndim == 2 else pixels @ np.array([0.299, 0.587, 0.114])


def _per_pixel(var: object) -> Array:  # (H, W)
    """The variance of each pixel; negative pixels that are few in sum count as 0."""
    heat = tensor("var", var)
    below, above = -heat.clamp(max=0).sum(), heat.clamp(min=0).sum()
    heat = variance("var", heat.clamp(min=0) if bool(below <= _CHANCE * above) else heat)
    if heat.dim() not in (2, 3) or heat.numel() == 0:
        raise ValueError(f"`var` has shape {tuple(heat.shape)}; give (H, W) or (C, H, W).")
    return (heat.sum(0) if heat.dim() == 3 else heat).numpy()


def _check_size(pixels: Array, **maps: Array) -> None:
    for name, values in maps.items():
        if values.shape != pixels.shape[:2]:
            raise ValueError(
                f"`image` is {pixels.shape[0]} x {pixels.shape[1]} pixels and `{name}` is "
                f"{values.shape[0]} x {values.shape[1]}; make them equal."
            )


def _draw_borders(ax: Axes, theme: Theme, inside: NDArray[np.bool_]) -> None:
    """A line between pixels of which one is inside; light on dark, so that it is always seen."""
    from matplotlib.collections import LineCollection

    framed = np.pad(inside, 1)
    rows, columns = np.nonzero(framed[1:, 1:-1] != framed[:-1, 1:-1])
    across = np.stack([[columns, rows], [columns + 1, rows]], axis=0)
    rows, columns = np.nonzero(framed[1:-1, 1:] != framed[1:-1, :-1])
    down = np.stack([[columns, rows], [columns, rows + 1]], axis=0)
    strokes = np.concatenate([across, down], axis=2).transpose(2, 0, 1)
    for color, width in ((theme.ink, 3.0), (theme.background, 1.2)):
        lines = LineCollection(list(strokes), colors=color, linewidths=width, capstyle="round")
        ax.add_collection(lines, autolim=False)
