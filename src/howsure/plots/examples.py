"""The most and the least certain predictions, as pictures with words."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.plots.canvas import frame, matplotlib, prepared
from howsure.plots.images import picture
from howsure.plots.theme import NORMAL, SMALL, current
from howsure.plots.values import Array, array, same_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 6
Grid = NDArray[np.object_]


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
    """
    values = array("uncertainty", uncertainty, "(n,)")
    _check_count("images", images, len(values))
    if captions is not None:
        _check_count("captions", captions, len(values))
    right = np.ones(len(values)) if correct is None else array("correct", correct, "(n,)")
    same_length(uncertainty=values, correct=right)
    grid = _new_axes(max(1, min(_COLUMNS, len(values) // 2))) if axes is None else _rows(axes)
    for row, chosen in zip(grid, _extremes(values, grid.shape[1]), strict=True):
        for ax, i in zip(row, chosen, strict=False):
            _draw(ax, images[i], captions[i] if captions else "", bool(right[i]))
            ax.set_xlabel(f"{label} {values[i]:.3g}", fontsize=SMALL)
        for ax in row[len(chosen) :]:
            ax.set_axis_off()
    for ax, name in zip(grid[:, 0], ("surest", "least sure"), strict=True):
        ax.set_ylabel(name, fontsize=NORMAL, weight="bold", color=current().ink)
    return grid


def _check_count(name: str, values: Sized, count: int) -> None:
    if len(values) != count:
        raise ValueError(
            f"`{name}` has {len(values)} entries and `uncertainty` has {count}; give one for each."
        )


def _extremes(values: Array, columns: int) -> tuple[list[int], list[int]]:
    """Positions of the smallest and of the largest values, no position in both."""
    order = values.argsort(kind="stable").tolist()
    least_sure = order[::-1][: min(columns, len(order) // 2)]
    return order[: min(columns, len(order) - len(least_sure))], least_sure


def _new_axes(columns: int) -> Grid:
    matplotlib()
    import matplotlib.pyplot as plt

    size = (1.45 * columns + 0.4, 3.9)
    figure = plt.figure(figsize=size, layout="constrained", facecolor=current().background)
    return figure.subplots(2, columns, squeeze=False)


def _rows(axes: Grid) -> Grid:
    grid = np.asarray(axes, dtype=object)
    if grid.ndim != 2 or len(grid) != 2 or grid.size == 0:
        raise ValueError(
            f"`axes` has shape {grid.shape}; give two rows, such as `figure.subplots(2, 6)`."
        )
    return grid


def _draw(ax: Axes, image: object, caption: str, right: bool) -> None:
    """One image with its caption; a thick frame and a word if the prediction is wrong."""
    ax, theme = prepared(ax)
    ax.imshow(picture("images", image), cmap="gray", vmin=0, vmax=1)
    frame(ax)
    if not right:
        ax.spines[:].set(color=theme.mark(1).colour, linewidth=3)
        caption = f"{caption} (wrong)" if caption else "wrong"
    ax.set_title(caption, fontsize=SMALL, color=theme.ink)
