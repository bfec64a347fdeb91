"""Which sensor should be better? The variance of a position, divided among four sensors.

A vehicle finds its place from its distances to three beacons, whose noise grows with the distance,
and from a depth sounder. The budget tells along the whole path how much of the variance each sensor
causes. Run from the repository: `python examples/gallery/several_sensors.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

BEACONS = {"a": (0.0, 0.0), "b": (6.0, 0.0), "c": (3.0, 4.0)}
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999")
NOISE = {
    **dict.fromkeys(BEACONS, hs.noise.range_dependent(0.01, 0.005, 0.005)),
    "sounder": hs.noise.std(0.05),
}


class Locator(nn.Module):
    """The place from all sensors; each is an input of its own."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
        self.layers = nn.Sequential(*hidden, nn.Linear(64, 2))

    def forward(self, a: Tensor, b: Tensor, c: Tensor, sounder: Tensor) -> Tensor:
        return self.layers(torch.cat([a, b, c, sounder], 1) - 2)


def sensed(place: Tensor) -> dict[str, Tensor]:
    """What the sensors would read without noise at places (n, 2)."""
    distances = torch.cdist(place, torch.tensor(list(BEACONS.values())))
    depth = 1 + 0.3 * place[:, :1] + 0.1 * torch.sin(2 * place[:, 1:])
    return dict(zip(NOISE, [*distances.split(1, 1), depth], strict=True))


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    model, generator = Locator(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        place = torch.rand(256, 2, generator=generator) * torch.tensor([6.0, 4.0])
        readings = hs.noise.sample_of(NOISE, sensed(place), generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(**readings), place).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="The variance by sensor.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_several_sensors.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    model = trained(60 if options.quick else 1500)
    along = torch.linspace(0, 1, 120)
    path = torch.stack([0.3 + 5.4 * along, 2 + 1.6 * torch.sin(9 * along)], 1)
    p = hs.Uncertain(model, NOISE, "gradients", rate=0.0)(**sensed(path))
    budget = p.budget()
    print(budget)

    figure = Figure(figsize=(11, 4.6), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*path.T, color="0.6", linewidth=1)
    drawn = left.scatter(*p.mean.T, c=p.total_var.sum(1).sqrt(), cmap="viridis_r", s=14)
    for (name, place), color in zip(BEACONS.items(), COLORS, strict=False):
        left.plot(*place, "^", color=color, markersize=12)
        left.annotate(f"beacon {name}", place, xytext=(8, 4), textcoords="offset points")
    left.set(aspect="equal", xlim=(-0.5, 7.8), ylim=(-0.4, 4.5), xlabel="x, m", ylabel="y, m")
    left.set_title("estimated path")
    figure.colorbar(drawn, ax=left, shrink=0.7, label="std of the position, m")
    shares = budget.variances.sum(2) / budget.total.sum(1)  # of both coordinates together
    right.stackplot(path[:, 0], shares, labels=budget.names, colors=COLORS, alpha=0.9)
    right.set(xlim=(0.3, 5.7), ylim=(0, 1), xlabel="x, m", title="share of the variance")
    right.legend(loc="lower center", ncols=3, fontsize=9)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
