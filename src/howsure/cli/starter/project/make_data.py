"""Makes the data, trains the network for some seconds, and writes what the commands read.

A made-up task: a wave over two sensors, whose readings are noisy. With your own network you have
all of this already: weights, and held-out data with the true values.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from model import build  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn

NOISE_STD = 0.05  # of each sensor, in the units of its readings


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Readings (count, 2), which carry the sensors' noise, and true values (count, 1)."""
    x = 4 * torch.rand(count, 2, generator=generator) - 2
    y = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:] ** 2
    return x + NOISE_STD * torch.randn(count, 2, generator=generator), y


def train(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Plain training; howsure comes after it."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


def write_table(path: Path, x: Tensor, y: Tensor) -> None:
    """The same as CSV, to show that tables work as well."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["left", "right", "height"])
        writer.writerows(torch.cat([x, y], 1).tolist())


def main() -> None:
    """Writes weights.pt, held_out.npz, new.npz, new.csv and frames.npy."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = build()
    train(net, *draw(50, generator))  # few, so that the network has reason to be unsure
    torch.save(net.state_dict(), "weights.pt")

    x, y = draw(200, generator)  # held out: the network has not seen it
    np.savez("held_out.npz", x=x.numpy(), y=y.numpy())

    x, y = draw(1000, generator)
    np.savez("new.npz", x=x.numpy())
    write_table(Path("new.csv"), x, y)

    at_rest = torch.tensor([0.3, -1.2]) + NOISE_STD * torch.randn(400, 2, generator=generator)
    np.save("frames.npy", at_rest.numpy())  # the same scene, 400 times
    print("weights.pt, held_out.npz, new.npz, new.csv, frames.npy")


if __name__ == "__main__":
    main()
