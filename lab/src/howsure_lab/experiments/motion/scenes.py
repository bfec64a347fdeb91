"""What moves in front of the camera: an object, and the background with the camera's own motion.

A scene is a row of numbers, drawn from a seed. Times are -1 (the past frame), 0 (now) and 1 (the
future frame, which no network sees). Lengths are shares of the image's side, so that scenes do not
depend on its size in pixels.

- "predictable": a smooth blob that goes on as it went: what it did from -1 to 0 it does again from
  0 to 1.
- "unpredictable": a star that moves fast and bends its limbs, and starts anew at time 0. Its future
  is drawn apart from its past, so no input tells it; but its looks tell what kind it is.
- "hidden": looks and moves like a predictable one until now, and starts anew at time 0. Nothing in
  the input distinguishes it from a predictable one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

KINDS = ("predictable", "unpredictable", "hidden")
HARMONICS = (2, 3, 5, 6)  # of the outline
WAVES = 3  # of the bending

_GOES_ON = 0.05  # how far a predictable motion changes, as a share of its size


@dataclass(frozen=True)
class _Nature:
    """What distinguishes objects by their looks and their past; standard deviations per frame."""

    outline: tuple[float, ...]  # strength of each of `HARMONICS`
    shift: float
    bend: float


_CALM = _Nature((0.12, 0.06, 0.0, 0.0), 0.025, 0.003)
_LIVELY = _Nature((0.05, 0.08, 0.25, 0.15), 0.07, 0.016)


@dataclass(frozen=True, eq=False)
class Motion:
    """Where an object is at another time, relative to now; 0 everywhere is no motion.

    An object's point at c, seen from the object's center, is then at
    center + shift + e**zoom R(angle) c + sum of bend sin(...).
    """

    shift: Tensor  # (n, 2), right and down
    angle: Tensor  # (n,)
    zoom: Tensor  # (n,)
    bend: Tensor  # (n, WAVES, 2)

    def __getitem__(self, chosen: slice | Tensor) -> Motion:
        """Some of the motions."""
        return Motion(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Scenes:
    """One number per scene, unless a comment says otherwise."""

    center: Tensor  # (n, 2), of the object now
    radius: Tensor
    outline: Tensor  # (n, len(HARMONICS)), strength of each
    outline_phase: Tensor  # (n, len(HARMONICS))
    wave: Tensor  # (n, WAVES, 2), wave vectors of the bending
    wave_phase: Tensor  # (n, WAVES)
    past: Motion
    future: Motion
    camera: Tensor  # (n, 2), shift of the background from one frame to the next
    tone: Tensor  # (n, 2), of object and background
    contrast: Tensor  # (n, 2), of their textures
    gain: Tensor  # of the light
    seed: Tensor  # of the textures

    def __len__(self) -> int:
        return self.radius.shape[0]

    def __getitem__(self, chosen: slice | Tensor) -> Scenes:
        """Some of the scenes."""
        return Scenes(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def draw_scenes(count: int, seed: int, kind: str = "predictable") -> Scenes:
    """Random scenes with objects of one kind; the same seed gives the same scenes."""
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {KINDS}, not {kind!r}.")
    if count < 1:
        raise ValueError(f"`count` must be at least 1, not {count}.")
    draw = _Draw(count, torch.Generator().manual_seed(seed))
    nature = _LIVELY if kind == "unpredictable" else _CALM
    past, anew, change = (_motion(draw, nature) for _ in range(3))
    angle, length = draw.uniform(0, 2 * torch.pi, WAVES), draw.uniform(6, 12, WAVES)
    return Scenes(
        center=draw.uniform(0.36, 0.64, 2),
        radius=draw.uniform(0.17, 0.23),
        outline=torch.tensor(nature.outline) * draw.uniform(0.6, 1.0, len(HARMONICS)),
        outline_phase=draw.uniform(0, 2 * torch.pi, len(HARMONICS)),
        wave=length.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1),
        wave_phase=draw.uniform(0, 2 * torch.pi, WAVES),
        past=past,
        future=_continued(past, change) if kind == "predictable" else anew,
        camera=draw.normal(0.012, 2),
        # The object is brighter than what is behind it: a small network needs that to learn from
        # a thousand scenes where an object was.
        tone=torch.tensor([0.35, 0.0]) + draw.uniform(0.2, 0.45, 2),
        contrast=draw.uniform(0.1, 0.6, 2),
        gain=draw.uniform(0.7, 1.1),
        seed=draw.integers(),
    )


def _motion(draw: _Draw, nature: _Nature) -> Motion:
    """A displacement of an object within the time of one frame."""
    return Motion(
        shift=nature.shift * draw.normal(1.0, 2).clamp(-2, 2),
        angle=draw.normal(0.06),
        zoom=draw.normal(0.02),
        bend=nature.bend * draw.normal(1.0, WAVES, 2).clamp(-1.5, 1.5),
    )


def _continued(past: Motion, change: Motion) -> Motion:
    """The same motion once more, changed a little."""
    names = [field.name for field in fields(Motion)]
    pairs = {name: (getattr(past, name), getattr(change, name)) for name in names}
    return Motion(**{name: _GOES_ON * new - old for name, (old, new) in pairs.items()})


class _Draw:
    """Random numbers, one or more per scene."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count = count
        self.generator = generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand((self.count, *shape), generator=self.generator)

    def normal(self, std: float, *shape: int) -> Tensor:
        return std * torch.randn((self.count, *shape), generator=self.generator)

    def integers(self) -> Tensor:
        return torch.randint(2**31, (self.count,), generator=self.generator)
