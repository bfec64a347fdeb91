"""The demonstration's picture: roads with predicted angles, and below them what is true of all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from howsure.files import write_atomically
from howsure_lab.demo.panels import draw_coverage, draw_novelty
from howsure_lab.demo.road import draw_key, draw_road
from howsure_lab.demo.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

_ROWS = ("one road", "least sure")


def save_picture(study: Study, path: Path) -> Path:
    """Writes the picture, whole or not at all, and returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 9.2), dpi=110, layout="constrained")
    grid: Any = figure.add_gridspec(4, len(study.outcomes), height_ratios=(2, 2, 0.95, 0.95))
    draw_gallery(figure, grid, study)
    draw_coverage(figure.add_subplot(grid[2, :]), study)
    draw_novelty(figure.add_subplot(grid[3, :]), study)
    draw_key(figure)
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def draw_gallery(figure: Figure, grid: GridSpec, study: Study) -> None:
    """A column per condition: the same road, and the one that howsure is least sure about."""
    same = typical(study)
    for column, outcome in enumerate(study.outcomes):
        for row, i in enumerate((same, outcome.by_certainty[-1])):
            ax = draw_road(figure.add_subplot(grid[row, column]), outcome, i)
            if row == 0:
                ax.set_title(f"{outcome.name}\n{study.told(outcome)}", fontsize=12, weight="bold")
            if column == 0:
                ax.set_ylabel(_ROWS[row], fontsize=12, weight="bold")


def typical(study: Study) -> int:
    """The road that stands for all: its stds are the closest to the conditions' medians.

    Taken among bends in good light, of which a picture shows more.
    """
    logs = torch.stack([outcome.var.log() for outcome in study.outcomes])
    gaps = (logs - logs.median(dim=1, keepdim=True).values).square().sum(0)
    bend, light = study.clear.true.abs(), study.clear.pairs.x.mean((1, 2, 3))
    suits = (bend >= bend.quantile(0.6)) & (light >= light.median())
    return int(torch.where(suits, gaps, gaps + gaps.max()).argmin())
