"""Pictures of what is at every pixel: a row for each condition, a column for each quantity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from howsure_lab.experiments.figures import new_figure, save

# What a column shows, (height, width), and how: the arguments of `imshow`.
Columns = Mapping[str, tuple[Tensor, Mapping[str, Any]]]
GRAY = {"cmap": "gray", "vmin": 0, "vmax": 1}


def draw_maps(rows: Mapping[str, Columns], path: Path) -> Path:
    """Writes the maps as PNG, rows and columns by their names, with the scale of each column."""
    titles = list(next(iter(rows.values())))
    figure, axes = new_figure(len(rows), len(titles), width=11, height=5.6)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    drawn = []
    for row, (label, columns) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(label)
        drawn = [
            ax.imshow(values.numpy(), **how)
            for ax, (values, how) in zip(row, columns.values(), strict=True)
        ]
        for ax in row:
            ax.set(xticks=[], yticks=[])
    for column, image in enumerate(drawn):
        figure.colorbar(image, ax=axes[:, column], location="bottom")
    return save(figure, path)
