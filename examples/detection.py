"""A detector of boxes: how sure is each side of a box that survives non-maximum suppression?

Some sides of the objects are sharp and some are blurred, and the camera is noisy. The detector
proposes a box at every cell of a grid. `hs.Detector` makes a row of every box that survives: four
numbers, which howsure takes like any other output.
Run from the repository: `python examples/detection.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure.files import write_atomically

SIDE, STRIDE, OBJECTS = 64, 4, 3
NOISE = hs.noise.std(0.06)
CENTERS = STRIDE * (torch.arange(SIDE // STRIDE) + 0.5)
SHARP, BLURRED = 0.5, 4.0  # pixels


def scenes(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, boxes (count, objects, 4) as left, top, right, bottom, and the blur of each side."""
    g = torch.Generator().manual_seed(seed)
    quarter = torch.rand(count, 4, generator=g).argsort(1)[:, :OBJECTS]
    middle = torch.stack([quarter % 2, quarter // 2], 2) * SIDE / 2 + SIDE / 4
    middle = middle + 5 * (torch.rand(count, OBJECTS, 2, generator=g) - 0.5)
    half = 6 + 6 * torch.rand(count, OBJECTS, 2, generator=g)
    boxes = torch.cat([middle - half, middle + half], 2)
    blur = torch.where(torch.rand(boxes.shape, generator=g) < 0.25, BLURRED, SHARP)
    pixel = torch.arange(SIDE) + 0.5
    ramps = [
        torch.sigmoid(sign * (pixel - boxes[..., side, None]) / blur[..., side, None])
        for side, sign in enumerate((1, 1, -1, -1))
    ]
    inside = (ramps[1] * ramps[3])[..., :, None] * (ramps[0] * ramps[2])[..., None, :]
    tone = 0.35 + 0.2 * torch.rand(count, OBJECTS, 1, 1, generator=g)
    shade = (inside * tone).sum(1, keepdim=True)
    ground = F.avg_pool2d(torch.rand(count, 1, SIDE + 8, SIDE + 8, generator=g), 9, 1)
    return 0.7 + 0.4 * (ground - 0.5) - shade, boxes, blur


class Detector(nn.Module):
    """The logit of an object and a box at every cell: (batch, 5, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        steps = [(1, 16, 2, 1), (16, 32, 2, 1), (32, 48, 1, 1), (48, 48, 1, 2), (48, 48, 1, 2)]
        layers = [
            layer
            for before, after, stride, wide in steps
            for layer in (
                nn.Conv2d(before, after, 3, stride, padding=wide, dilation=wide, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            )
        ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(48, 5, 1))

    def forward(self, image: Tensor) -> Tensor:
        logit, sides = self.layers(image).split([1, 4], 1)
        x, y = CENTERS.expand(1, 16, 16), CENTERS[:, None].expand(1, 16, 16)
        reach = 10 + 4 * sides
        corners = torch.cat([x, y, x, y]) + reach * torch.tensor([-1, -1, 1, 1]).view(4, 1, 1)
        return torch.cat([logit, corners], 1)


def read(output: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes and probabilities of all cells, as `hs.Detector` wants them."""
    cells = output.flatten(2).mT
    return cells[..., 1:], cells[..., :1].sigmoid()


def trained(steps: int) -> Detector:
    torch.manual_seed(0)
    detector, g = Detector(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(detector.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for step in range(steps):
        image, boxes, _ = scenes(16, 100 + step)
        found = detector(NOISE.sample(image, g))
        middle = (boxes[..., :2] + boxes[..., 2:]) / 2  # (batch, objects, 2)
        away = (CENTERS - middle[..., None]).abs()  # (batch, objects, 2, 16)
        far = torch.maximum(away[:, :, 1, :, None], away[:, :, 0, None, :])
        nearest, owner = far.min(1)  # (batch, 16, 16)
        target = boxes.gather(1, owner.flatten(1)[..., None].expand(-1, -1, 4))
        error = (found[:, 1:].flatten(2).mT - target).abs().mean(2).view_as(nearest)
        near = (nearest < 1.5 * STRIDE).float()
        loss = F.binary_cross_entropy_with_logits(found[:, 0], (nearest < 0.6 * STRIDE).float())
        optimizer.zero_grad()
        (20 * loss + (near * error).sum() / near.sum()).backward()
        optimizer.step()
        schedule.step()
    return detector.eval().requires_grad_(False)


def draw(ax: Axes, image: Tensor, p: hs.Prediction) -> None:
    """The boxes with a band of three stds to both sides of every side."""
    ax.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1.1, extent=(0, SIDE, SIDE, 0))
    for (left, top, right, bottom), std in zip(p.mean.tolist(), p.std.tolist(), strict=True):
        spans = ((left, top, bottom), (top, left, right), (right, top, bottom))
        for side, (at, low, high) in enumerate((*spans, (bottom, left, right))):
            wide, flat = 6 * std[side], side % 2
            corner, size = (at - wide / 2, low), (wide, high - low)
            corner, size = (corner[::-1], size[::-1]) if flat else (corner, size)
            ax.add_patch(Rectangle(corner, *size, color="tab:orange", alpha=0.6, linewidth=0))
        outline = (left, top), right - left, bottom - top
        ax.add_patch(Rectangle(*outline, fill=False, edgecolor="tab:blue", linewidth=1.2))
    ax.set(xticks=[], yticks=[], xlim=(0, SIDE), ylim=(SIDE, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description="Uncertainty of every side of a detected box.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_detection.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()
    detector = hs.Detector(trained(100 if options.quick else 400), read)
    sure = hs.Uncertain(detector, noise=(NOISE, None))

    def asked(count: int, seed: int) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """Images and cells of all survivors, their true boxes, and the blur of each side."""
        image, boxes, blur = scenes(count, seed)
        reading = NOISE.sample(image, torch.Generator().manual_seed(seed))
        x, truth = detector.detect(reading, max_overlap=0.3).match(list(boxes))
        owner = (boxes.flatten(0, 1) - truth[:, None]).abs().sum(2).argmin(1)
        return x, truth, blur.flatten(0, 1)[owner]

    x, truth, _ = asked(40, 1)
    print(sure.fit([(x, truth)], show_progress=False))
    x, truth, blur = asked(10 if options.quick else 40, 2)
    p = sure(*x)
    inside = ((p.mean - truth).abs() < 1.96 * p.std).double().mean()
    stds = {name: p.std[blur == each] for name, each in (("sharp", SHARP), ("blurred", BLURRED))}
    print(f"95 % intervals cover {100 * inside:.0f} % of the sides of {len(truth)} other boxes")

    figure = Figure(figsize=(12, 4.1), dpi=100, layout="constrained")
    *pictures, chart = figure.subplots(1, 4)
    generator = torch.Generator().manual_seed(5)
    image, _, blur = scenes(40, 3)
    most = (blur == BLURRED).sum((1, 2)).topk(3).indices
    for ax, reading in zip(pictures, NOISE.sample(image[most], generator), strict=True):
        draw(ax, reading, sure(*detector.detect(reading[None], max_overlap=0.3).inputs))
    pictures[1].set_title("the orange band is wide where a side is blurred")
    for name, std in stds.items():
        chart.hist(
            std.clamp(max=1.5).numpy(), bins=40, range=(0, 1.5), density=True, alpha=0.7, label=name
        )
    chart.set(xlabel="std of a side, pixels", yticks=[], title="each side has a std of its own")
    chart.legend(title="side", frameon=False)
    figure.supxlabel("blue: box after non-maximum suppression    orange: three stds to either side")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
