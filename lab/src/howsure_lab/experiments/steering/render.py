"""Images of scenes: a pinhole camera over a flat world, in gray, all scenes at once.

A pixel below the horizon sees the ground at depth z = h f / (v - v0) and lateral position
x = (u - u0) z / f; what is there depends on its distance from the lane's center. Then come
vehicles, light, fog or night, and the blur of the lens. The sensor's noise is not part of it: it
is added where an image is read, so that its variance is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure_lab.experiments.steering.scenes import VEHICLES, Scenes
from howsure_lab.experiments.steering.textures import Textures

_CHUNK = 128  # scenes at once, to bound the memory
_HEIGHT = 1.5  # of the camera, meters
_FOCAL = 0.7  # as a share of the image width
_HORIZON = 0.38  # as a share of the image height
_FAR = 200.0  # meters
_AIR = 0.8  # tone of fog


def render(scenes: Scenes, size: int = 64) -> Tensor:  # (n, 1, size, size)
    """Gray images in [0, 1]."""
    if size < 16:
        raise ValueError(f"`size` must be at least 16 pixels, not {size}.")
    parts = [_rendered(scenes[i : i + _CHUNK], size) for i in range(0, len(scenes), _CHUNK)]
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class _View:
    """What every pixel sees; (n, size, size), or broadcasts to it."""

    row: Tensor  # from 0 at the top to 1
    column: Tensor  # from -0.5 to 0.5
    below: Tensor  # below the horizon; 0 at it
    depth: Tensor
    lateral: Tensor


def _rendered(scenes: Scenes, size: int) -> Tensor:
    view = _view(scenes, size)
    textures = Textures.of(scenes.seed)
    ground = _ground(scenes, view, textures)
    image = torch.where(view.below > 0, ground, _above(view, textures))
    for k in range(VEHICLES):
        image = _with_vehicle(image, scenes, view, k)
    image = _lit(image, scenes, view)
    return _blurred(image, scenes.blur * size / 64).unsqueeze(1).clamp(0, 1)


def _view(scenes: Scenes, size: int) -> _View:
    centers = (torch.arange(size) + 0.5) / size
    row, column = centers.view(1, size, 1), centers.view(1, 1, size) - 0.5
    below = row - (_HORIZON + scenes.pitch.view(-1, 1, 1))
    depth = (_HEIGHT * _FOCAL / below.clamp(min=1e-6)).clamp(max=_FAR)
    return _View(row, column, below, depth, column * depth / _FOCAL)


def _ground(scenes: Scenes, view: _View, textures: Textures) -> Tensor:
    along = view.depth + scenes.traveled.view(-1, 1, 1)
    beside = view.lateral - scenes.road_center(view.depth)  # from the lane's center
    fade = 1 / (1 + view.depth / 12)  # texture averages out with distance
    grain = fade * (textures.fine(view.lateral, along) - 0.5)
    contrast, paint = scenes.contrast.view(-1, 1, 1), scenes.paint.view(-1, 1, 1)
    road = 0.42 + 0.12 * grain
    grass = 0.42 - 0.2 * contrast + 0.5 * grain
    # The lane reaches 1.8 m to both sides, the other lane lies to the left.
    on_road = _between(beside, -5.9, 2.3, view.depth)
    tone = grass + on_road * (road - grass)
    dashes = ((along / 9) % 1 < 0.45).to(tone.dtype)
    lines = _stripe(beside, 1.8, view.depth) + _stripe(beside, -5.4, view.depth)
    lines = (lines + dashes * _stripe(beside, -1.8, view.depth)).clamp(max=1)
    worn = paint * (0.7 + 0.6 * grain)
    tone = tone + lines * worn * (0.95 - tone)
    shade = torch.sigmoid((textures.coarse(view.lateral, along) - 0.58) / 0.03)
    return tone * (1 - scenes.shadow.view(-1, 1, 1) * shade)


def _between(x: Tensor, low: float, high: float, depth: Tensor) -> Tensor:
    """1 between two lateral positions, with an edge as soft as a pixel is wide there."""
    soft = 0.05 + 0.01 * depth
    return torch.sigmoid((x - low) / soft) * torch.sigmoid((high - x) / soft)


def _stripe(x: Tensor, center: float, depth: Tensor) -> Tensor:
    half = 0.08 + 0.002 * depth
    return torch.exp(-((x - center) / half).square())


def _above(view: _View, textures: Textures) -> Tensor:
    """Sky with clouds, and hills at the horizon."""
    clouds = textures.coarse(20 * view.column, 14 * view.row)
    sky = 0.7 + 0.15 * (1 - view.row) + 0.25 * (clouds - 0.5)
    height = 0.13 * textures.skyline(view.column)
    return torch.where(-view.below < height, 0.28 + 0.12 * clouds, sky)


def _with_vehicle(image: Tensor, scenes: Scenes, view: _View, k: int) -> Tensor:
    depth = scenes.vehicle_depth[:, k]
    shown = (depth > 0).view(-1, 1, 1)
    z = depth.clamp(min=1).view(-1, 1, 1)
    center = scenes.road_center(z) + scenes.vehicle_offset[:, k].view(-1, 1, 1)
    across = (view.column - _FOCAL * center / z) * z / _FOCAL  # meters
    up = _HEIGHT - view.below * z / _FOCAL  # meters above the ground
    body = shown & (across.abs() < 0.9) & (up > 0.15) & (up < 1.5)
    window = body & (across.abs() < 0.7) & (up > 0.95) & (up < 1.35)
    wheels = shown & (across.abs() < 0.9) & (up > -0.1) & (up <= 0.15)
    tone = scenes.vehicle_tone[:, k].view(-1, 1, 1).expand_as(image)
    image = torch.where(body, tone, image)
    image = torch.where(window, 0.6 * (1 - tone) + 0.1, image)
    return torch.where(wheels, torch.full_like(image, 0.08), image)


def _lit(image: Tensor, scenes: Scenes, view: _View) -> Tensor:
    def column(value: Tensor) -> Tensor:
        return value.view(-1, 1, 1)

    clear_air = torch.exp(-view.depth / column(scenes.fog))
    image = _AIR + clear_air * (image - _AIR)
    dark = image * (0.04 + 0.9 * _headlights(view))
    image = torch.where(column(scenes.night) > 0, dark, image)
    light = column(scenes.gain) * (1 + column(scenes.slant) * 2 * view.column)
    spot = torch.exp(-((view.column - column(scenes.slant)).square() + view.row.square()) / 0.05)
    image = (image * light + column(scenes.glare) * spot).clamp(0, 1)
    return image ** column(scenes.gamma)


def _headlights(view: _View) -> Tensor:
    reach = torch.exp(-view.depth / 14) * (view.below > 0)
    return reach * torch.exp(-(view.lateral / (1.5 + 0.35 * view.depth)).square())


def _blurred(
    image: Tensor,  # (n, size, size)
    std: Tensor,  # (n,), in pixels
) -> Tensor:
    """Each image through a Gaussian of its own width."""
    reach = int(3 * float(std.max())) + 1
    offsets = torch.arange(-reach, reach + 1, dtype=image.dtype)
    kernel = torch.exp(-0.5 * (offsets / std.clamp(min=1e-3).unsqueeze(1)).square())
    kernel = (kernel / kernel.sum(1, keepdim=True)).view(len(std), 1, 1, -1)
    padded = F.pad(image.unsqueeze(0), (reach,) * 4, mode="replicate")
    rows = F.conv2d(padded, kernel, groups=len(std))
    return F.conv2d(rows, kernel.transpose(2, 3), groups=len(std)).squeeze(0)
