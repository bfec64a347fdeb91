"""What moves in front of the camera, and images, masks and exact future flow of it.

A scene is a row of numbers, drawn from a seed. Times are -1 (the past frame), 0 (now) and 1 (the
future frame, which no network sees). Lengths are shares of the image's side, so that scenes do not
depend on its size in pixels.

- "predictable": a smooth blob that goes on as it went: what it did from -1 to 0 it does again from
  0 to 1.
- "unpredictable": a star that moves fast and bends its limbs, and starts anew at time 0. Its future
  is drawn apart from its past, so no input tells it; but its looks tell what kind it is.
- "hidden": looks and moves like a predictable one until now, and starts anew at time 0. Nothing in
  the input distinguishes it from a predictable one.

An image shows, at every pixel, the object's point that is there at that time, or the background.
The point is found by inverting the object's motion, which is a contraction away from the identity:
a fixed-point iteration converges. The flow needs no inversion: it is where a pixel's point goes,
minus where it is. The sensor's noise is not part of an image: it is added where one is read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from howsure_lab.experiments.steering.scenes import Draw, Rows, Textures

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
class Motion(Rows):
    """Where an object is at another time, relative to now; 0 everywhere is no motion.

    An object's point at c, seen from the object's center, is then at
    center + shift + e**zoom R(angle) c + sum of bend sin(...).
    """

    shift: Tensor  # (n, 2), right and down
    angle: Tensor  # (n,)
    zoom: Tensor  # (n,)
    bend: Tensor  # (n, WAVES, 2)


@dataclass(frozen=True, eq=False)
class Scenes(Rows):
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


def draw_scenes(count: int, seed: int, kind: str = "predictable") -> Scenes:
    """Random scenes with objects of one kind; the same seed gives the same scenes."""
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {KINDS}, not {kind!r}.")
    if count < 1:
        raise ValueError(f"`count` must be at least 1, not {count}.")
    draw = Draw(count, torch.Generator().manual_seed(seed))
    nature = _LIVELY if kind == "unpredictable" else _CALM
    past, anew, change = (_drawn(draw, nature) for _ in range(3))
    names = [field.name for field in fields(Motion)]
    # The same motion once more, changed a little.
    future = Motion(**{n: _GOES_ON * getattr(change, n) - getattr(past, n) for n in names})
    angle, length = draw.uniform(0, 2 * torch.pi, WAVES), draw.uniform(6, 12, WAVES)
    return Scenes(
        center=draw.uniform(0.36, 0.64, 2),
        radius=draw.uniform(0.17, 0.23),
        outline=torch.tensor(nature.outline) * draw.uniform(0.6, 1.0, len(HARMONICS)),
        outline_phase=draw.uniform(0, 2 * torch.pi, len(HARMONICS)),
        wave=length.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1),
        wave_phase=draw.uniform(0, 2 * torch.pi, WAVES),
        past=past,
        future=future if kind == "predictable" else anew,
        camera=draw.normal(0.012, 2),
        # The object is brighter than what is behind it: a small network needs that to learn from
        # a thousand scenes where an object was.
        tone=torch.tensor([0.35, 0.0]) + draw.uniform(0.2, 0.45, 2),
        contrast=draw.uniform(0.1, 0.6, 2),
        gain=draw.uniform(0.7, 1.1),
        seed=draw.integers(),
    )


def _drawn(draw: Draw, nature: _Nature) -> Motion:
    """A displacement of an object within the time of one frame."""
    return Motion(
        shift=nature.shift * draw.normal(1.0, 2).clamp(-2, 2),
        angle=draw.normal(0.06),
        zoom=draw.normal(0.02),
        bend=nature.bend * draw.normal(1.0, WAVES, 2).clamp(-1.5, 1.5),
    )


_CHUNK = 128  # scenes at once, to bound the memory
_ITERATIONS = 20  # of the inversion: enough for 1e-3 of a pixel; a test says so
_GRAIN = 30.0  # cells of texture along an image
_EDGE = 0.4  # softness of the outline, pixels
_TIMES = (-1, 0, 1)


class Rendered(NamedTuple):
    """What a camera and an all-knowing observer see of scenes."""

    now: Tensor  # (n, 1, size, size), gray values in [0, 1]
    past: Tensor  # likewise
    mask: Tensor  # (n, 1, size, size), 1 on the object now
    flow: Tensor  # (n, 2, size, size), pixels to the right and down, from now to the future


def render(scenes: Scenes, size: int = 64) -> Rendered:
    """Both frames, the object's mask and its future flow."""
    if size < 16:
        raise ValueError(f"`size` must be at least 16 pixels, not {size}.")
    parts = [_rendered(scenes[i : i + _CHUNK], size) for i in range(0, len(scenes), _CHUNK)]
    return Rendered(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _rendered(scenes: Scenes, size: int) -> Rendered:
    place = pixels(len(scenes), size) - scenes.center[:, None, None]
    mask = (_inside(scenes, place, size) > 0.5).to(place.dtype)
    flow = size * (moved(scenes, place, 1) - place).permute(0, 3, 1, 2)
    return Rendered(image(scenes, size, 0), image(scenes, size, -1), mask[:, None], flow)


def pixels(count: int, size: int) -> Tensor:  # (n, size, size, 2)
    """The centers of all pixels, (right, down) from 0 to 1."""
    centers = (torch.arange(size) + 0.5) / size
    down, right = torch.meshgrid(centers, centers, indexing="ij")
    return torch.stack([right, down], -1).expand(count, size, size, 2)


def image(scenes: Scenes, size: int, time: int) -> Tensor:  # (n, 1, size, size)
    """The frame at a time, without noise."""
    if time not in _TIMES:
        raise ValueError(f"`time` must be one of {_TIMES}, not {time}.")
    seen = pixels(len(scenes), size)
    behind = seen - time * scenes.camera[:, None, None]
    place = origin(scenes, seen - scenes.center[:, None, None], time)
    textures = Textures.of(scenes.seed)
    inside = _inside(scenes, place, size)
    object_, background = (
        _surface(scenes, textures, where, k) for k, where in enumerate((place, behind))
    )
    tone = inside * object_ + (1 - inside) * background
    return (scenes.gain.view(-1, 1, 1) * tone).clamp(0, 1).unsqueeze(1)


def _surface(scenes: Scenes, textures: Textures, where: Tensor, k: int) -> Tensor:
    """The tone of the object (k = 0) or of the background (k = 1)."""
    right, down = _GRAIN * where[..., 0] + 90.0 * k, _GRAIN * where[..., 1]
    pattern = textures.coarse(right, down) - 0.5
    tone, contrast = scenes.tone[:, k], scenes.contrast[:, k]
    return tone.view(-1, 1, 1) + contrast.view(-1, 1, 1) * pattern


def _inside(scenes: Scenes, place: Tensor, size: int) -> Tensor:  # (n, size, size)
    """1 inside the outline, 0 outside, with a soft edge."""
    turn = torch.atan2(place[..., 1], place[..., 0])
    reach = torch.ones_like(turn)
    for j, harmonic in enumerate(HARMONICS):
        strength, phase = (x[:, j].view(-1, 1, 1) for x in (scenes.outline, scenes.outline_phase))
        reach = reach + strength * torch.cos(harmonic * turn + phase)
    edge = scenes.radius.view(-1, 1, 1) * reach - place.norm(dim=-1)
    return torch.sigmoid(edge * size / _EDGE)


def moved(scenes: Scenes, place: Tensor, time: int) -> Tensor:  # (n, ..., 2)
    """Where points of the object are at a time; both seen from the object's center of now."""
    if time == 0:
        return place
    motion = scenes.future if time == 1 else scenes.past
    cos, sin = (f(motion.angle).view(-1, 1, 1) for f in (torch.cos, torch.sin))
    right, down = place[..., 0], place[..., 1]
    turned = torch.stack([cos * right - sin * down, sin * right + cos * down], -1)
    # The camera moves on, whatever the object does.
    shift = motion.shift + time * scenes.camera
    rigid = torch.exp(motion.zoom).view(-1, 1, 1, 1) * turned + shift[:, None, None]
    start = scenes.wave_phase[:, None, None]
    phase = torch.einsum("nhwd,nkd->nhwk", place, scenes.wave) + start
    # Bent relative to the center, which the shift alone moves.
    swing = torch.sin(phase) - torch.sin(start)
    return rigid + torch.einsum("nhwk,nkd->nhwd", swing, motion.bend)


def origin(scenes: Scenes, seen: Tensor, time: int) -> Tensor:  # (n, height, width, 2)
    """The points of the object that are at the places `seen` at a time: the inverse of `moved`."""
    place = seen
    for _ in range(_ITERATIONS if time else 0):
        place = place + seen - moved(scenes, place, time)
    return place
