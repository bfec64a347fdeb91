"""Images, masks and exact future flow of scenes, all scenes at once.

An image shows, at every pixel, the object's point that is there at that time, or the background.
The point is found by inverting the object's motion, which is a contraction away from the identity:
a fixed-point iteration converges. The flow needs no inversion: it is where a pixel's point goes,
minus where it is. The sensor's noise is not part of an image: it is added where one is read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure_lab.experiments.motion.scenes import HARMONICS, Motion, Scenes
from howsure_lab.experiments.steering.textures import Textures

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
    return _rigid(_motion(scenes, time), place) + _bent(scenes, place, time)


def origin(scenes: Scenes, seen: Tensor, time: int) -> Tensor:  # (n, height, width, 2)
    """The points of the object that are at the places `seen` at a time: the inverse of `moved`."""
    if time == 0:
        return seen
    place = seen
    for _ in range(_ITERATIONS):
        place = place + seen - moved(scenes, place, time)
    return place


def _motion(scenes: Scenes, time: int) -> Motion:
    motion = scenes.future if time == 1 else scenes.past
    # The camera moves on, whatever the object does.
    shift = motion.shift + time * scenes.camera
    return Motion(shift, motion.angle, motion.zoom, motion.bend)


def _rigid(motion: Motion, place: Tensor) -> Tensor:
    cos, sin = (f(motion.angle).view(-1, 1, 1) for f in (torch.cos, torch.sin))
    right, down = place[..., 0], place[..., 1]
    turned = torch.stack([cos * right - sin * down, sin * right + cos * down], -1)
    return torch.exp(motion.zoom).view(-1, 1, 1, 1) * turned + motion.shift[:, None, None]


def _bent(scenes: Scenes, place: Tensor, time: int) -> Tensor:
    phase = torch.einsum("nhwd,nkd->nhwk", place, scenes.wave) + scenes.wave_phase[:, None, None]
    # Relative to the center, which the shift alone moves.
    swing = torch.sin(phase) - torch.sin(scenes.wave_phase)[:, None, None]
    return torch.einsum("nhwk,nkd->nhwd", swing, _motion(scenes, time).bend)
