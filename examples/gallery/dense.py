"""A network with thousands of outputs: which pixels of a segmentation can be trusted?

A small encoder and decoder marks discs on a textured ground; the left half of every image is read
by a noisier part of the sensor. 1024 outputs are too many for a backward pass each, so howsure
samples by itself. Run from the repository: `python examples/gallery/dense.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure.files import write_atomically

SIDE = 32
NOISE_STD = torch.full((SIDE, SIDE), 0.05)
NOISE_STD[:, : SIDE // 2] = 0.2


def scenes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of two discs, (count, 1, 32, 32), and where the discs are."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    mask = torch.zeros(count, SIDE, SIDE)
    for _ in range(2):
        cx, cy = (SIDE * torch.rand(2, count, 1, 1, generator=generator)).unbind()
        radius = 4 + 5 * torch.rand(count, 1, 1, generator=generator)
        mask = torch.maximum(mask, ((x - cx) ** 2 + (y - cy) ** 2 < radius**2).float())
    texture = F.avg_pool2d(torch.rand(count, 1, SIDE + 4, SIDE + 4, generator=generator), 5, 1)
    return 0.3 + 0.6 * (texture - 0.5) + 0.3 * mask[:, None], mask[:, None]


class Marker(nn.Module):
    """The probability of a disc at every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 12, 5, padding=2)
        self.deep = nn.Conv2d(12, 24, 5, stride=2, padding=2)
        self.up = nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1)
        self.out = nn.Conv2d(24, 1, 5, padding=2)

    def forward(self, image: Tensor) -> Tensor:
        shallow = F.relu(self.down(image))
        deep = F.relu(self.up(F.relu(self.deep(shallow))))
        return torch.sigmoid(self.out(torch.cat([shallow, deep], 1)))


def trained(noise: hs.noise.Noise, steps: int) -> nn.Module:
    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(1), Marker()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        image, mask = scenes(16, generator)
        optimizer.zero_grad()
        F.binary_cross_entropy(model(noise.sample(image, generator)), mask).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Uncertainty of every pixel.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_dense.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    noise = hs.noise.std(NOISE_STD)
    model = trained(noise, 20 if options.quick else 200)
    generator = torch.Generator().manual_seed(3)
    image, mask = scenes(3, generator)
    reading = noise.sample(image, generator)
    p = hs.Uncertain(model, noise, samples=100)(reading)  # a rate would add the model's part
    print(p.notes[0])

    columns = {"reading": reading, "truth": mask, "probability": p.mean, "std": p.std}
    figure = Figure(figsize=(9.6, 7), dpi=100, layout="constrained")
    axes = figure.subplots(3, 4)
    for row, line in enumerate(axes):
        for ax, (name, values) in zip(line, columns.items(), strict=True):
            scale = {"cmap": "Blues", "vmax": 0.4} if name == "std" else {"cmap": "gray", "vmax": 1}
            ax.imshow(values[row, 0].numpy(), vmin=0, **scale)
            ax.set(xticks=[], yticks=[], title=name if row == 0 else "")
    figure.colorbar(axes[0, 3].images[0], ax=axes, shrink=0.6, label="std of the probability")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
