"""A network with a memory: how long does it stay unsure after the sensor was bad?

An LSTM reads a noisy signal step by step and estimates its clean value. In the middle the sensor is
four times as noisy. The std that howsure predicts is compared with that of many noisy samples.

Run from the repository: `python examples/gallery/lstm.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

STEPS = 60
NOISE_STD = torch.full((STEPS, 1), 0.1)
NOISE_STD[25:40] = 0.4


class Filter(nn.Module):
    """The clean signal at every step, from the readings up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, readings: Tensor) -> Tensor:  # (batch, steps, 1) -> (batch, steps)
        return self.out(self.memory(readings)[0]).squeeze(2)


def signals(count: int, generator: torch.Generator) -> Tensor:
    """Two waves of random frequency and phase, (count, steps, 1)."""
    time = torch.arange(STEPS).float()
    phase, speed = torch.rand(2, count, 2, 1, generator=generator)
    waves = torch.sin((0.08 + 0.15 * speed) * time + 6.28 * phase)
    return waves.mean(1).unsqueeze(2)


def trained(noise: hs.noise.Noise, steps: int) -> nn.Module:
    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(1), Filter()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        clean = signals(64, generator)
        found = model(noise.sample(clean, generator))
        optimizer.zero_grad()
        nn.functional.mse_loss(found, clean[:, :, 0]).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Uncertainty over time.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_lstm.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    noise, generator = hs.noise.std(NOISE_STD), torch.Generator().manual_seed(2)
    model = trained(noise, 15 if options.quick else 250)
    clean = signals(1, generator)
    reading = noise.sample(clean, generator)
    copies = model(noise.sample(reading.expand(500, -1, -1), generator))
    found = {"500 Monte Carlo samples": (copies.mean(0), copies.std(0))}
    for method in ("gradients", "adf"):
        p = hs.Uncertain(model, noise, method, rate=0.0)(reading)
        found[method] = (p.mean[0], p.std[0])
    figure = Figure(figsize=(9, 5.6), dpi=100, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
    time, (mean, std) = range(STEPS), found["gradients"]
    for ax in (above, below):
        ax.axvspan(25, 39, color="0.92", linewidth=0)
    above.fill_between(time, mean - 2 * std, mean + 2 * std, color="#56B4E9", alpha=0.5)
    above.plot(time, mean, color="#0072B2", label="estimate ± 2 std")
    above.plot(time, clean[0, :, 0], color="black", linestyle="--", label="truth")
    above.plot(time, reading[0, :, 0], ".", color="0.5", label="readings")
    for (name, (_, std)), line in zip(found.items(), ("-", "--", ":"), strict=True):
        below.plot(time, std, line, label=name, linewidth=1.8)
    below.set(xlabel="step; gray: the sensor is four times as noisy", ylabel="std", ylim=(0, 0.24))
    for ax in (above, below):
        ax.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
