"""One picture that explains it: a curve, a noisy sensor, and two reasons to be unsure.

A small network learns a curve from points on two stretches; in use its input is a reading with
noise. What the noise causes is large where the curve is steep. What the network does not know comes
from dropout, if there is one trained network, or from several networks, if you can train them.

Run from the repository: `python examples/gallery/toy.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

NOISE_STD = 0.1
STRETCHES = ((-3.0, -1.0), (0.6, 2.6))
BLUE, VERMILLION, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#1a1a1a"


def truth(x: Tensor) -> Tensor:
    return torch.sin(2.5 * x) + 0.3 * x


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions on the stretches, and the curve there."""
    generator = torch.Generator().manual_seed(seed)
    parts = [a + (b - a) * torch.rand(count, 1, generator=generator) for a, b in STRETCHES]
    x = torch.cat(parts)
    return x, truth(x) + 0.03 * torch.randn(x.shape, generator=generator)


def trained(x: Tensor, y: Tensor, steps: int, seed: int) -> nn.Module:
    """Plain least squares: nothing here knows of uncertainty."""
    torch.manual_seed(seed)
    layers = [nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def draw(ax: Axes, x: Tensor, mean: Tensor, reach: Tensor, color: str) -> None:
    """A line with a band around it, over the curve and the stretches with points."""
    for stretch in STRETCHES:
        ax.axvspan(*stretch, color="0.93", linewidth=0)
    flat, mean, reach = x[:, 0], mean[:, 0], 2 * reach[:, 0]
    ax.fill_between(flat, mean - reach, mean + reach, color=color, alpha=0.35, linewidth=0)
    ax.plot(flat, truth(flat), color=INK, linewidth=1, linestyle="--")
    ax.plot(flat, mean, color=color, linewidth=1.8)
    ax.set(xlim=(-4.2, 3.8), ylim=(-4, 4), xlabel="reading")


def main() -> None:
    parser = argparse.ArgumentParser(description="The picture that explains it.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_toy.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    data, steps = points(60, seed=0), 150 if options.quick else 600
    networks = [trained(*data, steps, seed) for seed in range(5)]
    noise, generator = hs.noise.std(NOISE_STD), torch.Generator().manual_seed(1)
    held_out = 6.8 * torch.rand(150, 1, generator=generator) - 3.6  # also where it has not been
    sure = hs.Uncertain(networks[0], noise)
    found = [(noise.sample(held_out, generator), truth(held_out))]
    sure.fit(found, model="dropout", show_progress=False)
    print(f"dropout rate {sure.setup.rate:.3f}")

    x = torch.linspace(-4.2, 3.8, 400)[:, None]
    members = nn.ModuleList(networks).eval()
    p, several = sure(x), hs.Uncertain(members, method="ensemble")(x)
    panels = {
        "A network gives a number": (networks[0](x), torch.zeros_like(x), INK),
        "The sensor's noise: more where it is steep": (p.mean, p.data_var.sqrt(), BLUE),
        "One network with dropout: some everywhere": (p.mean, p.model_var.sqrt(), VERMILLION),
        "Five networks: more where no points were": (several.mean, several.std, GREEN),
    }
    figure = Figure(figsize=(11, 6.4), dpi=100, layout="constrained")
    for ax, (title, drawn) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        draw(ax, x, *drawn)
        ax.set_title(title, fontsize=11)
    figure.supxlabel("dashed: the truth; gray: where it was trained; bands: 2 std", fontsize=10)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
