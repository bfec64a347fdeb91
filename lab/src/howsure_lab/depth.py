"""Depth and classes from one image: rendered scenes with both at every pixel, and a small U-Net.

A pinhole camera looks over a flat ground with boxes on it. Where a box meets the ground tells how
far it is, and so does its texture. The target is the logarithm of the depth in meters, or what is
seen: sky, ground or box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEIGHT, WIDTH = 48, 64
# Read out with a noise of this std; images are in [0, 1].
NOISE_STD = 0.02
_CAMERA, _FOCAL, _HORIZON = 1.5, 0.8, 0.35  # meters; shares of the image's width and height
_FAR = 60.0  # meters
_BOXES = 4
_AIR = 0.75  # tone of fog


@dataclass(frozen=True, eq=False)
class Scenes:
    """Clear images and what is at every pixel."""

    image: Tensor  # (n, 1, height, width), in [0, 1]
    depth: Tensor  # (n, 1, height, width), in meters
    classes: Tensor  # (n, height, width): 0 is sky, 1 ground, 2 a box


def scenes(count: int, seed: int, *, floating: bool = False) -> Scenes:
    """Rendered scenes; `floating` lifts the boxes off the ground, which no training scene does."""
    generator = torch.Generator().manual_seed(seed)
    row = ((torch.arange(HEIGHT) + 0.5) / HEIGHT).view(1, -1, 1)
    column = ((torch.arange(WIDTH) + 0.5) / WIDTH - 0.5).view(1, 1, -1)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    below = (row - _HORIZON) * HEIGHT / WIDTH
    ground = (_CAMERA * _FOCAL / below.clamp(min=1e-6)).clamp(max=_FAR).expand(count, -1, WIDTH)
    depth = torch.where(below > 0, ground, _FAR)
    grain = _grain(column * depth / _FOCAL, depth + uniform(0, 50), generator)
    image = torch.where(below > 0, uniform(0.3, 0.5) + 0.3 * grain, uniform(0.7, 0.95) - 0.2 * row)
    classes = (below > 0).long().expand(count, HEIGHT, WIDTH)
    for _ in range(_BOXES):
        z = torch.exp(uniform(1.4, 3.3))  # 4 to 27 m
        x, half, tall = uniform(-0.45, 0.45) * z / _FOCAL, uniform(0.4, 1.2), uniform(0.8, 2.4)
        lift = uniform(0.8, 1.6) if floating else torch.zeros_like(z)
        across = column * z / _FOCAL - x
        up = _CAMERA - below * z / _FOCAL - lift
        inside = (across.abs() < half) & (up > 0) & (up < tall) & (z < depth)
        tone = uniform(0.1, 0.9) + 0.12 * torch.sign(torch.sin(9 * across) * torch.sin(9 * up))
        image, depth = torch.where(inside, tone, image), torch.where(inside, z, depth)
        classes = torch.where(inside, 2, classes)
    return Scenes(image.clamp(0, 1).unsqueeze(1), depth.unsqueeze(1), classes)


def _grain(x: Tensor, z: Tensor, generator: torch.Generator) -> Tensor:
    """Waves on the ground in several directions, which average out with distance."""
    waves = torch.zeros_like(x)
    for _ in range(5):
        fx, fz, phase = (4 * torch.rand(3, generator=generator) + 1).tolist()
        waves = waves + torch.sin(fx * x + fz * z + phase)
    return waves / 5 / (1 + z.remainder(50) / 20)


def in_fog(known: Scenes) -> Tensor:
    """The images in fog through which one sees some 12 m."""
    return _AIR + torch.exp(-known.depth / 12) * (known.image - _AIR)


def behind_dirt(known: Scenes) -> Tensor:
    """The images behind a lens with a blurred spot of dirt."""
    row, column = torch.arange(HEIGHT).view(-1, 1), torch.arange(WIDTH).view(1, -1)
    spot = torch.exp(-((row - 30.0).square() + (column - 20.0).square()) / 120)
    return known.image * (1 - spot) + 0.9 * spot


# What nobody announces: what happens to images, and whether the boxes hang in the air.
CONDITIONS: dict[str, tuple[Callable[[Scenes], Tensor], bool]] = {
    "clear": (lambda known: known.image, False),
    "fog": (in_fog, False),
    "night": (lambda known: 0.2 * known.image, False),
    "dirty lens": (behind_dirt, False),
    "floating boxes": (lambda known: known.image, True),
}


def pairs(count: int, seed: int, condition: str = "clear") -> tuple[Tensor, Tensor]:
    """Readings and the logarithm of the depth under a condition."""
    reading, known = _seen(count, seed, condition)
    return reading, known.depth.log()


def labeled(count: int, seed: int, condition: str = "clear") -> tuple[Tensor, Tensor]:
    """Readings and the classes under a condition."""
    reading, known = _seen(count, seed, condition)
    return reading, known.classes


def _seen(count: int, seed: int, condition: str) -> tuple[Tensor, Scenes]:
    change, floating = CONDITIONS[condition]
    known = scenes(count, seed, floating=floating)
    image, generator = change(known), torch.Generator().manual_seed(seed + 1)
    return image + NOISE_STD * torch.randn(image.shape, generator=generator), known


class DepthNet(nn.Module):
    """A small U-Net with the logarithm of the depth at every pixel; its last layer is 1 x 1.

    With three outputs they are the logits of the classes.
    """

    def __init__(self, width: int = 16, outputs: int = 1) -> None:
        super().__init__()
        wide = 2 * width
        self.first = _block(1, width)
        self.down = _block(width, wide)
        self.deep = _block(wide, 2 * wide)
        self.up = _block(3 * wide, wide)
        self.last = _block(wide + width, wide)
        self.head = nn.Conv2d(wide, outputs, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Log depth, (batch, 1, height, width), or logits."""
        first = self.first(image)
        down = self.down(F.max_pool2d(first, 2))
        deep = self.deep(F.max_pool2d(down, 4))
        up = self.up(torch.cat([F.interpolate(deep, scale_factor=4.0), down], 1))
        return self.head(self.last(torch.cat([F.interpolate(up, scale_factor=2.0), first], 1)))


def _block(before: int, after: int) -> nn.Sequential:
    kernel = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(kernel, nn.BatchNorm2d(after), nn.ReLU())


def trained(steps: int = 300, count: int = 600, seed: int = 0) -> DepthNet:
    """A network that has learned the depth of clear scenes."""
    loss = partial(F.smooth_l1_loss, beta=0.2)
    return _trained(1, pairs(count, seed), loss, steps, seed)


def trained_classes(steps: int = 300, count: int = 600, seed: int = 0) -> DepthNet:
    """A network that has learned the classes of clear scenes."""
    return _trained(3, labeled(count, seed), F.cross_entropy, steps, seed)


def _trained(
    outputs: int,
    data: tuple[Tensor, Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    seed: int,
) -> DepthNet:
    torch.manual_seed(seed)
    net, (x, y) = DepthNet(outputs=outputs), data
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for step in range(steps):
        some = torch.randint(len(x), (16,))
        noisy = x[some] + NOISE_STD * torch.randn(x[some].shape) * (step % 2)
        optimizer.zero_grad()
        loss(net(noisy), y[some]).backward()
        optimizer.step()
        schedule.step()
    return net.eval().requires_grad_(False)
