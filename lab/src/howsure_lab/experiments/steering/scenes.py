"""What is in front of the camera, and images of it: the road, the light, what stands in the way.

A scene is a row of numbers, drawn from a seed; `render` turns it into an image and `steering` into
the angle that a driver would steer. "clear" is what networks are trained on; the other conditions
are held out.

A pixel below the horizon sees the ground at depth z = h f / (v - v0) and lateral position
x = (u - u0) z / f; what is there depends on its distance from the lane's center. Then come
vehicles, light, fog or night, and the blur of the lens. The sensor's noise is not part of it: it
is added where an image is read, so that its variance is known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from typing_extensions import Self

_CELLS = 64


@dataclass(frozen=True, eq=False)
class Textures:
    """Random numbers on a grid that repeats; between its nodes they are interpolated."""

    grid: Tensor  # (n, 1, cells + 1, cells + 1), in [0, 1]

    @staticmethod
    def of(
        seeds: Tensor,  # (n,)
    ) -> Textures:
        """A pattern for each seed, whatever the other seeds are."""
        drawn = [
            torch.rand(1, _CELLS, _CELLS, generator=torch.Generator().manual_seed(int(seed)))
            for seed in seeds
        ]
        return Textures(F.pad(torch.stack(drawn), (0, 1, 0, 1), mode="circular"))

    def fine(self, x: Tensor, y: Tensor) -> Tensor:
        """Grain with cells of 0.3 x 0.6 meters."""
        return self.at(x / 0.3, y / 0.6)

    def coarse(self, x: Tensor, y: Tensor) -> Tensor:
        """Patches with cells of 3 x 4 meters, in two octaves."""
        return 0.65 * self.at(x / 3 + 17.3, y / 4 + 5.1) + 0.35 * self.at(x / 1.1, y / 1.7)

    def at(self, x: Tensor, y: Tensor) -> Tensor:  # (n, rows, columns)
        """The pattern at positions in cells, which broadcast to each other."""
        place = torch.stack(torch.broadcast_tensors(x % _CELLS, y % _CELLS), -1)
        place = place.expand(self.grid.shape[0], *place.shape[1:]) * 2 / _CELLS - 1
        return F.grid_sample(self.grid, place, align_corners=True).squeeze(1)


CONDITIONS = ("clear", "night", "fog", "missing_lane")
VEHICLES = 2

_WHEELBASE = 2.7  # meters
_LOOK_AHEAD = 12.0  # meters: the driver aims at the center of the lane there
_STEERING_RATIO = 5.0  # of wheel to road angle, so that angles have the size of Udacity's


class Draw:
    """Random numbers, one or more per scene."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count = count
        self.generator = generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Evenly between two numbers."""
        return low + (high - low) * torch.rand((self.count, *shape), generator=self.generator)

    def normal(self, std: float, *shape: int) -> Tensor:
        """Around 0."""
        return std * torch.randn((self.count, *shape), generator=self.generator)

    def sometimes(self, share: float, low: float, high: float) -> Tensor:
        """A strength for a share of the scenes, 0 for the others."""
        strength = self.uniform(low, high)
        return torch.where(self.uniform(0, 1) < share, strength, torch.zeros_like(strength))

    def integers(self) -> Tensor:
        """Such as seeds of textures."""
        return torch.randint(2**31, (self.count,), generator=self.generator)


@dataclass(frozen=True, eq=False)
class Rows:
    """Fields that all have one entry per scene."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, chosen: slice | Tensor) -> Self:
        """Some of the scenes."""
        return type(self)(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Scenes(Rows):
    """One number per scene, unless a comment says otherwise; lengths are in meters."""

    curvature: Tensor  # of the road, 1 / meter; positive bends to the right
    offset: Tensor  # of the lane's center from the camera, at the camera
    heading: Tensor  # slope of the road at the camera
    traveled: Tensor  # moves texture and dashes along the road
    pitch: Tensor  # of the horizon, as a share of the image height
    gain: Tensor
    gamma: Tensor
    slant: Tensor  # of the light from left to right
    glare: Tensor  # strength of a bright spot
    shadow: Tensor  # strength of shadows on the ground
    contrast: Tensor  # between the road and what is beside it
    paint: Tensor  # how much of the lane markings is left
    blur: Tensor  # std in pixels of an image that is 64 wide
    fog: Tensor  # visibility; infinite without fog
    night: Tensor  # 1 in the dark, with headlights
    vehicle_depth: Tensor  # (n, VEHICLES); 0 for none
    vehicle_offset: Tensor  # (n, VEHICLES), from the lane's center
    vehicle_tone: Tensor  # (n, VEHICLES)
    seed: Tensor  # of texture, clouds and hills

    def road_center(self, depth: Tensor) -> Tensor:
        """Lateral position of the lane's center at a depth that broadcasts from (n, ...)."""
        shape = (len(self),) + (1,) * (depth.dim() - 1)
        offset, heading = self.offset.view(shape), self.heading.view(shape)
        return offset + heading * depth + 0.5 * self.curvature.view(shape) * depth.square()


def draw_scenes(count: int, seed: int, condition: str = "clear") -> Scenes:
    """Random scenes of one condition; the same seed gives the same scenes."""
    if condition not in CONDITIONS:
        raise ValueError(f"`condition` must be one of {CONDITIONS}, not {condition!r}.")
    if count < 1:
        raise ValueError(f"`count` must be at least 1, not {count}.")
    draw = Draw(count, torch.Generator().manual_seed(seed))
    visible = draw.uniform(0, 1, VEHICLES) < 0.3
    depth = draw.uniform(7, 35, VEHICLES)
    scenes = {
        "curvature": draw.normal(0.012).clamp(-0.035, 0.035),
        "offset": draw.normal(0.3).clamp(-0.9, 0.9),
        "heading": draw.normal(0.03).clamp(-0.09, 0.09),
        "traveled": draw.uniform(0, 100),
        "pitch": draw.uniform(-0.02, 0.02),
        "gain": draw.uniform(0.6, 1.2),
        "gamma": draw.uniform(0.8, 1.25),
        "slant": draw.uniform(-0.2, 0.2),
        "glare": draw.sometimes(0.15, 0.2, 0.6),
        "shadow": draw.sometimes(0.4, 0.2, 0.6),
        "contrast": draw.uniform(0.5, 1.0),
        "paint": draw.uniform(0.3, 1.0),
        "blur": draw.uniform(0.2, 1.0),
        "fog": draw.uniform(7, 16),
        "night": torch.zeros(count),
        "vehicle_depth": torch.where(visible, depth, torch.zeros_like(depth)),
        # One in the own lane, one in the other.
        "vehicle_offset": draw.uniform(-0.3, 0.3, VEHICLES) - torch.tensor([0.0, 3.6]),
        "vehicle_tone": draw.uniform(0.05, 0.9, VEHICLES),
        "seed": draw.integers(),
    }
    return Scenes(**_under(condition, scenes))


def _under(condition: str, scenes: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same scenes under another condition."""
    dark, nothing = torch.ones_like(scenes["night"]), torch.zeros_like(scenes["night"])
    changes = {
        "clear": {},
        "fog": {"fog": scenes["fog"]},
        "night": {"night": dark, "shadow": nothing, "glare": nothing},
        "missing_lane": {"paint": nothing, "contrast": 0.3 * scenes["contrast"]},
    }
    return {**scenes, "fog": nothing + torch.inf, **changes[condition]}


def steering(scenes: Scenes) -> Tensor:  # (n, 1)
    """The angle that leads to the lane's center ahead, by pure pursuit; right is positive."""
    target = scenes.road_center(torch.full((len(scenes), 1), _LOOK_AHEAD))
    return _STEERING_RATIO * torch.atan(2 * _WHEELBASE * target / _LOOK_AHEAD**2)


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
    chunks = range(0, len(scenes), _CHUNK)
    return torch.cat([_rendered(scenes[i : i + _CHUNK], size) for i in chunks])


@dataclass(frozen=True, eq=False)
class _View:
    """What every pixel sees; (n, size, size), or broadcasts to it."""

    row: Tensor  # from 0 at the top to 1
    column: Tensor  # from -0.5 to 0.5
    below: Tensor  # below the horizon; 0 at it
    depth: Tensor
    lateral: Tensor


def _rendered(scenes: Scenes, size: int) -> Tensor:
    centers = (torch.arange(size) + 0.5) / size
    row, column = centers.view(1, size, 1), centers.view(1, 1, size) - 0.5
    below = row - (_HORIZON + _column(scenes.pitch))
    depth = (_HEIGHT * _FOCAL / below.clamp(min=1e-6)).clamp(max=_FAR)
    view = _View(row, column, below, depth, column * depth / _FOCAL)
    textures = Textures.of(scenes.seed)
    ground = _ground(scenes, view, textures)
    image = torch.where(view.below > 0, ground, _above(view, textures))
    for k in range(VEHICLES):
        image = _with_vehicle(image, scenes, view, k)
    image = _lit(image, scenes, view)
    return _blurred(image, scenes.blur * size / 64).unsqueeze(1).clamp(0, 1)


def _column(values: Tensor) -> Tensor:  # (n,) -> (n, 1, 1)
    """One number per scene, for all its pixels."""
    return values.view(-1, 1, 1)


def _ground(scenes: Scenes, view: _View, textures: Textures) -> Tensor:
    along = view.depth + _column(scenes.traveled)
    beside = view.lateral - scenes.road_center(view.depth)  # from the lane's center
    fade = 1 / (1 + view.depth / 12)  # texture averages out with distance
    grain = fade * (textures.fine(view.lateral, along) - 0.5)
    road = 0.42 + 0.12 * grain
    grass = 0.42 - 0.2 * _column(scenes.contrast) + 0.5 * grain
    # The lane reaches 1.8 m to both sides, the other lane lies to the left.
    on_road = _between(beside, -5.9, 2.3, view.depth)
    tone = grass + on_road * (road - grass)
    dashes = ((along / 9) % 1 < 0.45).to(tone.dtype)
    lines = _stripe(beside, 1.8, view.depth) + _stripe(beside, -5.4, view.depth)
    lines = (lines + dashes * _stripe(beside, -1.8, view.depth)).clamp(max=1)
    worn = _column(scenes.paint) * (0.7 + 0.6 * grain)
    tone = tone + lines * worn * (0.95 - tone)
    shade = torch.sigmoid((textures.coarse(view.lateral, along) - 0.58) / 0.03)
    return tone * (1 - _column(scenes.shadow) * shade)


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
    height = 0.13 * textures.at(12 * view.column + 40.5, torch.full_like(view.column, 30.5))
    return torch.where(-view.below < height, 0.28 + 0.12 * clouds, sky)


def _with_vehicle(image: Tensor, scenes: Scenes, view: _View, k: int) -> Tensor:
    depth = _column(scenes.vehicle_depth[:, k])
    z = depth.clamp(min=1)
    center = scenes.road_center(z) + _column(scenes.vehicle_offset[:, k])
    across = ((view.column - _FOCAL * center / z) * z / _FOCAL).abs()  # meters
    up = _HEIGHT - view.below * z / _FOCAL  # meters above the ground
    inside = (depth > 0) & (across < 0.9)
    tone = _column(scenes.vehicle_tone[:, k])
    image = torch.where(inside & (up > 0.15) & (up < 1.5), tone, image)
    window = inside & (across < 0.7) & (up > 0.95) & (up < 1.35)
    image = torch.where(window, 0.6 * (1 - tone) + 0.1, image)
    return torch.where(inside & (up > -0.1) & (up <= 0.15), 0.08, image)


def _lit(image: Tensor, scenes: Scenes, view: _View) -> Tensor:
    clear_air = torch.exp(-view.depth / _column(scenes.fog))
    image = _AIR + clear_air * (image - _AIR)
    reach = torch.exp(-view.depth / 14) * (view.below > 0)
    headlights = reach * torch.exp(-(view.lateral / (1.5 + 0.35 * view.depth)).square())
    dark = image * (0.04 + 0.9 * headlights)
    image = torch.where(_column(scenes.night) > 0, dark, image)
    slant = _column(scenes.slant)
    light = _column(scenes.gain) * (1 + slant * 2 * view.column)
    spot = torch.exp(-((view.column - slant).square() + view.row.square()) / 0.05)
    image = (image * light + _column(scenes.glare) * spot).clamp(0, 1)
    return image ** _column(scenes.gamma)


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
