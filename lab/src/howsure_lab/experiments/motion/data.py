"""The motion task's data: rendered scenes, or real videos, split so that no part meets another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure_lab.experiments.motion.objects import ObjectPairs, as_targets
from howsure_lab.experiments.motion.render import render
from howsure_lab.experiments.motion.scenes import KINDS, draw_scenes

# Every part of the rendered data has scenes of its own.
_SEEDS = {"train": 1, "validation": 2, "test": 3}


@dataclass(frozen=True)
class Counts:
    """How many objects each part has; of every kind for the tests.

    Attributes:
        train: For training.
        validation: For tuning.
        test: For testing.
        seldom: The share of unpredictable objects in training; half of those that tune are.
    """

    train: int
    validation: int
    test: int
    seldom: float = 0.05


@dataclass(frozen=True, eq=False)
class MotionData:
    """Training, held-out and test data; `tests` has one entry per kind of object."""

    train: ObjectPairs
    validation: ObjectPairs
    tests: Mapping[str, ObjectPairs]


def rendered_data(counts: Counts, size: int, noise_var: float) -> MotionData:
    """Scenes as a camera with noise of variance `noise_var` reads them."""

    def part(name: str, count: int, kind: str = "predictable") -> ObjectPairs:
        return rendered(count, size, noise_var, (100 * _SEEDS[name] + KINDS.index(kind), kind))

    seldom, half = round(counts.seldom * counts.train), counts.validation // 2
    train = [part("train", counts.train - seldom), part("train", max(seldom, 1), "unpredictable")]
    validation = [
        part("validation", counts.validation - half),
        part("validation", half, "unpredictable"),
    ]
    tests = {kind: part("test", counts.test, kind) for kind in KINDS}
    return MotionData(joined(train), joined(validation), tests)


def rendered(count: int, size: int, noise_var: float, what: tuple[int, str]) -> ObjectPairs:
    """Objects of one kind; `what` is the seed and the kind."""
    seed, kind = what
    seen = render(draw_scenes(count, seed, kind), size)
    frames = with_noise(torch.cat([seen.now, seen.past], 1), noise_var, seed)
    return ObjectPairs(torch.cat([frames, seen.mask], 1), as_targets(seen.flow, seen.mask))


def with_noise(frames: Tensor, var: float, seed: int) -> Tensor:
    """Frames as a sensor reads them; the same seed gives the same noise."""
    generator = torch.Generator().manual_seed(seed)
    return frames + var**0.5 * torch.randn(frames.shape, generator=generator)


def joined(parts: list[ObjectPairs]) -> ObjectPairs:
    """All objects of several parts."""
    return ObjectPairs(*(torch.cat(column) for column in zip(*parts, strict=True)))
