"""Draws img/correlated_noise.png: noises of one variance, and what a network makes of them.

python docs/make_correlated_noise_picture.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs

OUT = Path(__file__).parent / "img" / "correlated_noise.png"
STD, SIDE, DRAWS = 0.1, 32, 4000
# Colors that people who see few of them can tell apart.
COLORS = ("#0072B2", "#D55E00")

NOISES = {
    "independent": hs.noise.std(STD),
    "common mode": hs.noise.common_mode(0.7 * STD) + hs.noise.std(0.51**0.5 * STD),
    "rows": hs.noise.rows(STD),
    "blurred": hs.noise.blurred(STD, 1.5),
    "ar1": hs.noise.ar1(STD, 0.9, axis=-1),
    "random walk": hs.noise.random_walk(STD / ((SIDE + 1) / 2) ** 0.5, axis=-1),
}


def network() -> nn.Module:
    """A small network that looks for something bright in the middle."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.Tanh(), nn.AvgPool2d(7), nn.Flatten(), nn.Linear(32, 1)
    )
    with torch.no_grad():
        for layer in (net[0], net[4]):
            layer.weight.abs_()
    return net.eval()


@torch.no_grad()
def sampled_std(net: nn.Module, x: Tensor, noise: hs.noise.Noise) -> float:
    """The std of the output over draws of the noise."""
    generator = torch.Generator().manual_seed(1)
    return float(net(noise.sample(x.expand(DRAWS, 1, SIDE, SIDE), generator)).std())


def main() -> None:
    """Draws one reading of every noise, and the std of the output below."""
    net, x = network(), torch.zeros(1, 1, SIDE, SIDE)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, len(NOISES), height_ratios=(1, 1.25))
    stds = []
    for column, (name, noise) in enumerate(NOISES.items()):
        axes = figure.add_subplot(grid[0, column])
        drawn = noise.sample(x, torch.Generator().manual_seed(3))[0, 0]
        axes.imshow(drawn, cmap="gray", vmin=-3 * STD, vmax=3 * STD)
        axes.set_title(name, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
        found = hs.Uncertain(net, noise, "gradients", tolerance=0.02)(x)
        stds.append((float(found.std), sampled_std(net, x, noise)))
    bars = figure.add_subplot(grid[1, :])
    places = torch.arange(len(NOISES)).float()
    for shift, color, which in zip((-0.2, 0.2), COLORS, (0, 1), strict=True):
        label = ("gradients", f"Monte Carlo, {DRAWS:,} draws")[which]
        bars.bar(places + shift, [each[which] for each in stds], 0.36, color=color, label=label)
    bars.set_xticks(places.tolist(), list(NOISES))
    bars.set_xlim(-0.55, len(NOISES) - 0.45)
    bars.set_ylabel("std of the output")
    bars.legend(frameon=False, fontsize=9)
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT, dpi=130)
    for name, (found, drawn) in zip(NOISES, stds, strict=True):
        print(f"{name}: gradients {found:.4f}, Monte Carlo {drawn:.4f}")


if __name__ == "__main__":
    main()
