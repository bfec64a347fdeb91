"""Objects of real videos as inputs and targets; frames of a video are never on two sides.

A fold takes a fifth of the videos for testing, the next fifth for tuning, and the others for
training; five folds test every video once. Test objects are told apart by what their motion did:
those whose mean flow changed more than the median from one frame to the next are "changing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from howsure_lab.experiments.motion.data import Counts, MotionData, joined
from howsure_lab.experiments.motion.davis import Clip, Video, find_videos, read_clip
from howsure_lab.experiments.motion.model import DIVISOR
from howsure_lab.experiments.motion.objects import ObjectPairs, as_targets

FOLDS = 5
_LEAST = 16  # pixels of an object: one cell of the finest flow
_ORDER = 7  # seed of the order of the videos


@dataclass(frozen=True)
class Fold:
    """Names of the videos of each part."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def fold_of(names: Sequence[str], index: int) -> Fold:
    """The parts of a fold; every video is in exactly one of them."""
    if len(names) < 3:
        raise ValueError(f"There are {len(names)} videos; training, tuning and testing need 3.")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(_ORDER))
    size = max(1, len(names) // FOLDS)
    start = size * (index % FOLDS)
    turned = [str(names[int(i)]) for i in order.roll(-start)]
    return Fold(tuple(turned[2 * size :]), tuple(turned[size : 2 * size]), tuple(turned[:size]))


@dataclass(frozen=True, eq=False)
class Objects:
    """All usable frames of a video: inputs and targets, and how much the motion changed."""

    pairs: ObjectPairs
    change: Tensor  # (n,), pixels


def read_objects(folder: Path, height: int, width: int) -> dict[str, Objects]:
    """The objects of all videos of a folder, by the videos' names."""
    if height % DIVISOR or width % DIVISOR:
        raise ValueError(f"The sides must be multiples of {DIVISOR}, not {height} and {width}.")
    videos: tuple[Video, ...] = find_videos(folder)
    return {video.name: objects_of(read_clip(video, height, width)) for video in videos}


def objects_of(clip: Clip) -> Objects:
    """Every frame that has a past and a future, and an object that can be seen."""
    now, before = slice(1, -1), slice(0, -2)
    x = torch.cat([clip.frames[now], clip.frames[before], clip.masks[now]], 1)
    y = as_targets(clip.flows[1:], clip.masks[now])
    change = _mean_flow(clip.flows[1:], clip.masks[now]) - _mean_flow(
        clip.flows[:-1], clip.masks[before]
    )
    seen = (clip.masks[now].sum((1, 2, 3)) >= _LEAST) & (clip.masks[before].sum((1, 2, 3)) > 0)
    return Objects(ObjectPairs(x[seen], y[seen]), change.norm(dim=1)[seen])


def _mean_flow(flow: Tensor, mask: Tensor) -> Tensor:  # (n, 2)
    return (flow * mask).sum((2, 3)) / mask.sum((2, 3)).clamp(min=1)


def real_data(objects: dict[str, Objects], fold: Fold, counts: Counts) -> MotionData:
    """A fold's data; of tuning and testing about as many objects as asked for."""

    def part(names: tuple[str, ...]) -> Objects:
        pairs = joined([objects[name].pairs for name in names])
        return Objects(pairs, torch.cat([objects[name].change for name in names]))

    test = _spread(part(fold.test), counts.test)
    order = test.change.argsort(stable=True)
    halves = order.tensor_split(2)  # by rank, so that neither is empty where many are equal
    tests = {
        kind: ObjectPairs(*(each[half.sort().values] for each in test.pairs))
        for kind, half in zip(("steady", "changing"), halves, strict=True)
    }
    validation = _spread(part(fold.validation), counts.validation).pairs
    train = _spread(part(fold.train), counts.train).pairs
    return MotionData(joined([train, mirrored(train)]), validation, tests)


def _spread(objects: Objects, count: int) -> Objects:
    """About `count` of the objects, evenly spread in time."""
    total = len(objects.change)
    chosen = torch.linspace(0, total - 1, min(count, total)).round().long()
    return Objects(ObjectPairs(*(each[chosen] for each in objects.pairs)), objects.change[chosen])


def mirrored(pairs: ObjectPairs) -> ObjectPairs:
    """The same objects seen in a mirror: left is right, and flow to the right goes left."""
    sign = torch.tensor([-1.0, 1.0, 1.0]).view(3, 1, 1)
    return ObjectPairs(pairs.x.flip(-1), sign * pairs.y.flip(-1))
