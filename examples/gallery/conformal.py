"""Intervals that hold what they promise: split-conformal calibration on held-out readings.

The network's sensor is noisier than its datasheet says, and the targets are noisy themselves, so
the predicted intervals are too narrow. 500 held-out readings put that right, whatever the reason.

Run from the repository: `python examples/gallery/conformal.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

STATED, REAL = 0.05, 0.1  # std of the sensor's noise
LEVEL = 0.9


def truth(x: Tensor) -> Tensor:
    return torch.sin(3 * x) * torch.exp(-0.2 * x)


def readings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """What the sensor reads, and noisy targets."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(count, 1, generator=generator)
    noise, error = torch.randn(2, count, 1, generator=generator)
    return x + REAL * noise, truth(x) + 0.1 * error


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers)
    x = torch.linspace(-0.5, 4.5, 300)[:, None]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), truth(x)).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Intervals with a guarantee.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_conformal.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    sure = hs.Uncertain(trained(100 if options.quick else 800), hs.noise.std(STATED), "linear")
    grid = torch.linspace(0, 4, 300)[:, None]
    x, y = readings(3000, seed=2)
    figure = Figure(figsize=(11, 4.2), dpi=100, layout="constrained")
    for index, ax in enumerate(figure.subplots(1, 2, sharey=True)):
        if index:
            sure.calibrate([readings(500, seed=1)], "affine")
            sure.calibrate([readings(500, seed=3)], "conformal")
        low, high = sure(x).interval(LEVEL)
        inside = float(((low <= y) & (y <= high)).float().mean())
        low, high = (end[:, 0] for end in sure(grid).interval(LEVEL))
        ax.fill_between(grid[:, 0], low, high, color="#56B4E9", alpha=0.6, linewidth=0)
        ax.plot(x[:250], y[:250], ".", color="0.25", markersize=3.5)
        name = "calibrated" if index else "as predicted"
        ax.set_title(f"{name}: {100 * inside:.1f} % of the targets in the {100 * LEVEL:g} % band")
        ax.set_xlabel("reading")
        print(f"{name:13} {100 * inside:.1f} % inside")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
