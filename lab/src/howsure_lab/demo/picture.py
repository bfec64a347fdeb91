"""The demonstration's picture: roads with predicted angles, and stds beside errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from howsure.values.files import write_atomically
from howsure_lab.demo.panels import draw_coverage, draw_stds
from howsure_lab.demo.road import draw_key, draw_road
from howsure_lab.demo.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

_ROWS = ("one road", "surest", "least sure")


def save_picture(study: Study, path: Path) -> Path:
    """Writes the picture, whole or not at all, and returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 7.1), dpi=110, layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=(2.35, 1), wspace=0.02)
    draw_gallery(parts[0], study)
    upper, lower = parts[1].subplots(2, 1)
    draw_stds(upper, study)
    draw_coverage(lower, study)
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def draw_gallery(figure: SubFigure, study: Study) -> None:
    """A column per condition: the same road, the surest scene and the least sure one."""
    axes: Any = figure.subplots(len(_ROWS), len(study.outcomes))
    same = typical(study)
    for column, outcome in zip(axes.T, study.outcomes, strict=True):
        order = outcome.by_certainty
        for ax, i in zip(column, (same, order[0], order[-1]), strict=True):
            draw_road(ax, outcome, i)
        column[0].set_title(outcome.name, fontsize=13, weight="bold")
    for ax, name in zip(axes[:, 0], _ROWS, strict=True):
        ax.set_ylabel(name, fontsize=12, weight="bold")
    draw_key(figure)


def typical(study: Study) -> int:
    """The road that stands for all: its stds are the closest to the conditions' medians.

    Taken among bends in good light, of which a picture shows more.
    """
    logs = torch.stack([outcome.var.log() for outcome in study.outcomes])
    gaps = (logs - logs.median(dim=1, keepdim=True).values).square().sum(0)
    bend, light = study.clear.true.abs(), study.clear.pairs.x.mean((1, 2, 3))
    suits = (bend >= bend.quantile(0.6)) & (light >= light.median())
    return int(torch.where(suits, gaps, gaps + gaps.max()).argmin())
