"""Draws img/gradients_identity.png: h over the correlation, whose area is the variance.

python docs/make_gradients_picture.py
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from howsure.estimators.designs import EVEN, ODD, RHO

OUT = Path(__file__).parent / "img" / "gradients_identity.png"
# Rectifiers relu(z + t), and colors that people who see few of them can tell apart.
SHIFTS = {-1.0: "#D55E00", 0.0: "#0072B2", 1.0: "#009E73"}
STEPS = 20001


def both_pass(shift: float, angle: Tensor) -> Tensor:
    """P(Z > -t, Z' > -t) at correlations sin(angle), from the angles' first on.

    Its derivative in the correlation is a normal density (Plackett 1954), smooth in the angle.
    """
    slope = torch.exp(-(shift**2) / (1 + angle.sin())) / (2 * math.pi)
    steps = (slope[1:] + slope[:-1]) / 2 * angle.diff()
    return torch.cat([torch.zeros(1, dtype=angle.dtype), steps.cumsum(0)])


def curve(shift: float) -> tuple[Tensor, Tensor]:
    """Correlations from -1 to 1 and h at them, for relu(z + t)."""
    edge = math.pi / 2 - 1e-6
    angle = torch.linspace(-edge, edge, STEPS, dtype=torch.float64)
    found = both_pass(shift, angle)
    share = 0.5 * (1 + math.erf(shift / math.sqrt(2)))
    return angle.sin(), found + share - found[-1]  # at 1 both pass where one does


def at(rho: float, correlations: Tensor, h: Tensor) -> float:
    """h at one correlation."""
    return float(h[(correlations - rho).abs().argmin()])


def variance_of_block(correlations: Tensor, h: Tensor) -> float:
    """What blocks of four points find on average."""
    near, far = at(RHO, correlations, h), at(-RHO, correlations, h)
    one, mirror = float(h[-1]), float(h[0])
    odd = (1 - ODD) * (near + far) / 2 + ODD * (one + mirror) / 2
    even = (1 - 2 * EVEN) / (2 * RHO) * (near - far) / 2 + EVEN * (one - mirror) / 2
    return odd + even


def main() -> None:
    """Draws the curves with their nodes and areas."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for shift, color in SHIFTS.items():
        correlations, h = curve(shift)
        shown = correlations >= 0
        x, y = correlations[shown], h[shown]
        area, found = float(torch.trapezoid(y, x)), variance_of_block(correlations, h)
        argument = f"z {shift:+g}" if shift else "z"
        label = f"relu({argument}): area {area:.4f}, blocks of four {found:.4f}"
        axes.plot(x, y, color=color, label=label)
        axes.fill_between(x, y, color=color, alpha=0.12)
        for node in (RHO, 1.0):
            axes.plot(node, at(node, correlations, h), "o", color=color, ms=6, clip_on=False)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.1)
    axes.set_xlabel("correlation ρ of the two points")
    axes.set_ylabel("h(ρ): inner product of gradients")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT, dpi=130)


if __name__ == "__main__":
    main()
