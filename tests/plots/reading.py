"""What a test reads from Axes."""

import io

import numpy as np
import torch


def lines(ax):
    """The lines by label, each as (x, y)."""
    return {line.get_label(): np.asarray(line.get_xydata()).T for line in ax.lines}


def line(ax, start):
    """The one line whose label starts with `start`."""
    (found,) = [xy for name, xy in lines(ax).items() if name.startswith(start)]
    return found


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def drawn(ax):
    """Draws everything, as saving would; what is wrong only then shows here."""
    ax.get_figure().savefig(io.BytesIO(), format="png", dpi=30)
    return ax


def gaussians(count=400, seed=0):
    """Mean, variance and targets of predictions that are calibrated."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, generator=generator)
    var = 0.1 + torch.rand(count, generator=generator)
    return mean, var, mean + var.sqrt() * torch.randn(count, generator=generator)
