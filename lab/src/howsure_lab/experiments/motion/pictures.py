"""The figure of the motion run: arrows of future flow on the object, colored by uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from howsure_lab.experiments.figures import new_figure, save
from howsure_lab.experiments.motion.dense import Field
from howsure_lab.experiments.motion.model import STRIDE
from howsure_lab.experiments.motion.objects import ObjectPairs, covered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.quiver import Quiver

_SHOWN = 3  # objects per row


@dataclass(frozen=True, eq=False)
class _Shown:
    """Some objects of one kind, with what was predicted; everything has one entry per object."""

    pairs: ObjectPairs
    mean: Tensor  # (n, 2, rows, columns)
    std: Tensor  # (n, rows, columns), of an arrow's end point
    inside: Tensor  # (n, rows, columns), bool

    @staticmethod
    def of(field: Field, pairs: ObjectPairs) -> _Shown:
        """Objects evenly spread over all; none is picked by its looks."""
        few = ObjectPairs(*pairs.every(_SHOWN))
        found = field.predicted(few.x, "sampled_adf")
        std = found.total_var.sum(1).sqrt()
        return _Shown(few, found.mean, std, covered(few.y[:, 2]))


def draw_arrows(field: Field, tests: Mapping[str, ObjectPairs], path: Path) -> Path:
    """Writes a picture with a row for each of the two main kinds; a common scale of colors."""
    shown = {kind: _Shown.of(field, tests[kind]) for kind in list(tests)[:2]}
    most = max(float(each.std[each.inside].max()) for each in shown.values())
    # Flow of less than a cell could not be seen.
    longest = max(float(each.pairs.target.norm(dim=1).max()) for each in shown.values())
    times = max(1, round(2 * STRIDE / max(longest, 1e-3)))
    rows, columns = next(iter(tests.values())).x.shape[-2:]
    figure, axes = new_figure(2, _SHOWN, width=11, height=1 + 5.6 * rows / columns)
    for row, (kind, each) in zip(axes, shown.items(), strict=True):
        row[0].set_ylabel(kind, fontsize=12)
        for i, ax in enumerate(row[: len(each.std)]):
            drawn = _draw_object(ax, each, i, times)
            drawn.set_clim(0, most)
            if i == 0:
                figure.colorbar(drawn, ax=list(row), label="std (pixels)", shrink=0.9)
    length = "" if times == 1 else f"; arrows {times} times as long"
    how = f"sampled ADF, dropout {field.rate:g}"
    figure.suptitle(f"Predicted future flow, colored by its std ({how}); thin: what came{length}")
    return save(figure, path)


def _draw_object(ax: Axes, shown: _Shown, i: int, times: int) -> Quiver:
    """The frame with true and predicted arrows; returns the latter."""
    _draw_frame(ax, shown.pairs.x[i, 0])
    inside, std = shown.inside[i], shown.std[i][shown.inside[i]]
    _quiver(ax, times * shown.pairs.y[i, :2], inside, color="#D55E00", width=0.004)
    ax.set_title(f"mean std {float(std.mean()):.2f} pixels", fontsize=10)
    look = {"cmap": "viridis", "width": 0.011}
    return _quiver(ax, times * shown.mean[i], inside, std.numpy(), **look)


def _draw_frame(ax: Axes, frame: Tensor) -> None:
    ax.imshow(frame.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, alpha=0.5)
    ax.set(xticks=[], yticks=[])


def _quiver(ax: Axes, flow: Tensor, inside: Tensor, *colors: np.ndarray, **look: Any) -> Quiver:
    """Arrows of a field's cells on its image, in the length that they have."""
    down, right = torch.where(inside)
    place = [(STRIDE * cells + (STRIDE - 1) / 2).numpy() for cells in (right, down)]
    ends = [component[inside].numpy() for component in flow]
    return ax.quiver(*place, *ends, *colors, angles="xy", scale_units="xy", scale=1.0, **look)
