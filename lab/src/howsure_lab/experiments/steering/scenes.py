"""What is in front of the camera: the road, the light, what stands in the way.

A scene is a row of numbers, drawn from a seed; `render` turns it into an image and `steering` into
the angle that a driver would steer. "clear" is what networks are trained on; the other conditions
are held out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

CONDITIONS = ("clear", "night", "fog", "missing_lane")
VEHICLES = 2

_WHEELBASE = 2.7  # meters
_LOOK_AHEAD = 12.0  # meters: the driver aims at the center of the lane there
_STEERING_RATIO = 5.0  # of wheel to road angle, so that angles have the size of Udacity's


@dataclass(frozen=True, eq=False)
class Scenes:
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

    def __len__(self) -> int:
        return self.curvature.shape[0]

    def __getitem__(self, chosen: slice | Tensor) -> Scenes:
        """Some of the scenes."""
        return Scenes(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

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
    draw = _Draw(count, torch.Generator().manual_seed(seed))
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
    if condition != "fog":
        scenes["fog"] = torch.full_like(scenes["fog"], torch.inf)
    if condition == "night":
        scenes["night"] = torch.ones_like(scenes["night"])
        scenes["shadow"] = torch.zeros_like(scenes["shadow"])
        scenes["glare"] = torch.zeros_like(scenes["glare"])
    if condition == "missing_lane":
        scenes["paint"] = torch.zeros_like(scenes["paint"])
        scenes["contrast"] = 0.3 * scenes["contrast"]
    return scenes


def steering(scenes: Scenes) -> Tensor:  # (n, 1)
    """The angle that leads to the lane's center ahead, by pure pursuit; right is positive."""
    target = scenes.road_center(torch.full((len(scenes), 1), _LOOK_AHEAD))
    return _STEERING_RATIO * torch.atan(2 * _WHEELBASE * target / _LOOK_AHEAD**2)


class _Draw:
    """Random numbers, one or more per scene."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count = count
        self.generator = generator

    def uniform(self, low: float, high: float, columns: int = 0) -> Tensor:
        shape = (self.count, columns) if columns else (self.count,)
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def normal(self, std: float) -> Tensor:
        return std * torch.randn(self.count, generator=self.generator)

    def sometimes(self, share: float, low: float, high: float) -> Tensor:
        """A strength for a share of the scenes, 0 for the others."""
        strength = self.uniform(low, high)
        return torch.where(self.uniform(0, 1) < share, strength, torch.zeros_like(strength))

    def integers(self) -> Tensor:
        return torch.randint(2**31, (self.count,), generator=self.generator)
