"""Images, and which of their pixels the variance comes from or goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from howsure.plots.canvas import colour_bar, frame, prepared
from howsure.plots.theme import Theme
from howsure.plots.values import Array, tensor, variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

# Negative pixels of a budget may have this share of the sum of the others: 8 points leave 3 % on a
# DroNet, 64 points 0.1 %.
_CHANCE = 0.2


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
        image: Gray or colour; whole numbers from 0 to 255, or real numbers, which are stretched
            to [0, 1] if they leave it.
        var: Variance of each pixel, for example `budget.heatmap()[i, k]` or the variance of a
            depth map; channels are added up. A budget's pixels are estimates and can be slightly
            negative by chance, which is drawn as 0.
        overlay: Lay the variance over the image in gray, with a line around the pixels at or
            above half of the largest; otherwise both stand side by side.
        label: What the colours show.
        ax: Where to draw; by default a new figure.
    """
    pixels, heat = picture("image", image), _per_pixel(var)
    if heat.shape != pixels.shape[:2]:
        raise ValueError(
            f"`image` is {pixels.shape[0]} x {pixels.shape[1]} pixels and `var` is "
            f"{heat.shape[0]} x {heat.shape[1]}; make them equal."
        )
    ax, theme = prepared(ax, size=(4.4, 3.6) if overlay else (7.0, 3.4))
    draw = _draw_over if overlay else _draw_beside
    drawn = draw(ax, theme, pixels, heat)
    frame(ax)
    if not overlay:
        ax.spines[:].set_visible(False)
    colour_bar(ax, drawn, label)
    return ax


def _without_chance(heat: Tensor) -> Tensor:
    """Negative pixels as 0 if they are few in sum; a map with many is left for its error."""
    below, above = -heat.clamp(max=0).sum(), heat.clamp(min=0).sum()
    return heat.clamp(min=0) if bool(below <= _CHANCE * above) else heat


def picture(name: str, image: object) -> Array:  # (H, W) or (H, W, 3), from 0 to 1
    """An image as matplotlib wants it, channels last."""
    values = tensor(name, image)
    found = tuple(values.shape)
    if values.dim() == 3 and found[0] in (1, 3):
        values = values.movedim(0, -1)
    if values.dim() == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.dim() not in (2, 3) or (values.dim() == 3 and values.shape[-1] != 3) or 0 in found:
        raise ValueError(
            f"`{name}` has shape {found}; give one image, (H, W), (1, H, W), (3, H, W) or "
            "(H, W, 3)."
        )
    return _stretched(values.numpy())


def _stretched(values: Array) -> Array:
    """Gray values from 0 to 1: bytes divided by 255, other values stretched if they leave it."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return values
    if low >= 0 and high <= 255 and bool((values == values.round()).all()):
        return values / 255
    return (values - low) / (high - low) if high > low else np.full_like(values, 0.5)


def gray(pixels: Array) -> Array:
    """The luma of an image, (H, W) (ITU-R BT.601)."""
    return pixels if pixels.ndim == 2 else pixels @ np.array([0.299, 0.587, 0.114])


def _per_pixel(var: object) -> Array:  # (H, W)
    heat = variance("var", _without_chance(tensor("var", var)))
    if heat.dim() not in (2, 3) or heat.numel() == 0:
        raise ValueError(f"`var` has shape {tuple(heat.shape)}; give (H, W) or (C, H, W).")
    return (heat.sum(0) if heat.dim() == 3 else heat).numpy()


def _draw_beside(ax: Axes, theme: Theme, pixels: Array, heat: Array) -> AxesImage:
    """Both in the same Axes, the second to the right of the first."""
    height, width = heat.shape
    gap = 0.06 * width
    ax.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0))
    place = (width + gap, 2 * width + gap, height, 0)
    drawn = ax.imshow(heat, cmap=theme.scale, vmin=0, extent=place)
    ax.set(xlim=(0, 2 * width + gap), ylim=(height, 0))
    return drawn


def _draw_over(ax: Axes, theme: Theme, pixels: Array, heat: Array) -> AxesImage:
    """The image in pale gray, the variance over it: the larger the less transparent."""
    largest = float(heat.max())
    height, width = heat.shape
    extent = (0, width, height, 0)
    ax.imshow(gray(pixels), cmap="gray", vmin=0, vmax=1, extent=extent)
    opacity = np.sqrt(heat / largest) if largest else np.zeros_like(heat)
    drawn = ax.imshow(
        heat, cmap=theme.scale, vmin=0, vmax=largest or 1, alpha=0.9 * opacity, extent=extent
    )
    if largest:
        _draw_borders(ax, theme, heat >= largest / 2)
    return drawn


def _draw_borders(ax: Axes, theme: Theme, inside: NDArray[np.bool_]) -> None:
    """A line between pixels of which one is inside; light on dark, so that it is always seen."""
    from matplotlib.collections import LineCollection

    framed = np.pad(inside, 1)
    rows, columns = np.nonzero(framed[1:, 1:-1] != framed[:-1, 1:-1])
    across = np.stack([[columns, rows], [columns + 1, rows]], axis=0)
    rows, columns = np.nonzero(framed[1:-1, 1:] != framed[1:-1, :-1])
    down = np.stack([[columns, rows], [columns, rows + 1]], axis=0)
    strokes = np.concatenate([across, down], axis=2).transpose(2, 0, 1)
    for colour, width in ((theme.ink, 3.0), (theme.background, 1.2)):
        lines = LineCollection(list(strokes), colors=colour, linewidths=width, capstyle="round")
        ax.add_collection(lines, autolim=False)
