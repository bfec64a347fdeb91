"""Inputs and targets of the motion task: objects, the points on them, rendered scenes.

Tuning and scoring need a likelihood on the object and not on the background. So a network is asked
for its flow at some points, evenly spread over the object, and the flow there is all its output:
every method, objective and metric then works as for any other regression. Every object has the same
number of points, so that each object counts the same, however large it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from howsure_lab.experiments.motion.model import STRIDE, at_points, coarser
from howsure_lab.experiments.motion.scenes import KINDS, draw_scenes, render
from howsure_lab.experiments.training import Pairs, joined

POINTS = 16  # per object


class ObjectPairs(Pairs):
    """Inputs (n, 3, height, width) and targets (n, 3, rows, columns): flow and object's share.

    Batches are ((x, points), flow at the points).
    """

    def batches(self, size: int) -> list[tuple[Any, Tensor]]:
        """Batches in order."""
        parts = (ObjectPairs(*part) for part in super().batches(size))
        return [((part.x, part.points), part.target) for part in parts]

    def shuffled(self, size: int, seed: int) -> DataLoader[Any]:
        """A loader with another order in every epoch; same seed, same orders."""
        generator = torch.Generator().manual_seed(seed)
        inputs = zip(self.x, self.points, strict=True)
        objects: Any = list(zip(inputs, self.target, strict=True))
        drop = len(self.y) > size
        return DataLoader(objects, size, shuffle=True, generator=generator, drop_last=drop)

    @property
    def points(self) -> Tensor:  # (n, POINTS)
        """The points at which the flow is predicted."""
        return object_points(self.y[:, 2])

    @property
    def target(self) -> Tensor:  # (n, 2, POINTS, 1)
        """The true flow at `points`."""
        return at_points(self.y[:, :2], self.points)


def object_points(
    share: Tensor,  # (n, rows, columns), the share of each cell that the object covers
    count: int = POINTS,
) -> Tensor:  # (n, count)
    """Cells evenly spread, row by row, over those that the object covers.

    A small object has fewer cells than points, and some of them twice.
    """
    inside = covered(share).flatten(1)
    first_inside = torch.sort(~inside, dim=1, stable=True).indices
    spread = torch.linspace(0, 1, count) * (inside.sum(1, keepdim=True) - 1)
    return first_inside.gather(1, spread.round().long())


def covered(
    share: Tensor,  # (n, rows, columns)
) -> Tensor:  # likewise, bool
    """The cells of which the object covers half; if there is none, the one that it covers most."""
    most = share.amax((1, 2), keepdim=True)
    if bool((most <= 0).any()):
        raise ValueError("An object has an empty mask; leave out frames without the object.")
    return share >= most.clamp(max=0.5)


def as_targets(
    flow: Tensor,  # (n, 2, height, width)
    mask: Tensor,  # (n, 1, height, width)
) -> Tensor:  # (n, 3, height / 4, width / 4)
    """The object's mean flow in every cell of the finest prediction, and its share of the cell."""
    return torch.cat(coarser(torch.cat([flow, mask], 1), STRIDE), 1)


# Every part of the rendered data has scenes of its own.
_SEEDS = {"train": 1, "validation": 2, "test": 3}


@dataclass(frozen=True)
class Counts:
    """How many objects each part has; of every kind for the tests."""

    train: int
    validation: int
    test: int
    seldom: float = 0.05  # share of unpredictable objects in training; half of those that tune are


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
    train = [part("train", counts.train - seldom), part("train", max(seldom, 1), KINDS[1])]
    validation = [part("validation", counts.validation - half), part("validation", half, KINDS[1])]
    tests = {kind: part("test", counts.test, kind) for kind in KINDS}
    return MotionData(joined(train), joined(validation), tests)


def rendered(count: int, size: int, noise_var: float, what: tuple[int, str]) -> ObjectPairs:
    """Objects of one kind; `what` is the seed and the kind."""
    seed, kind = what
    seen = render(draw_scenes(count, seed, kind), size)
    targets = as_targets(seen.flow, seen.mask)
    frames = Pairs(torch.cat([seen.now, seen.past], 1), targets).with_noise(noise_var, seed).x
    return ObjectPairs(torch.cat([frames, seen.mask], 1), targets)
