"""The steering task's data: rendered roads or real drives, split so that no part meets another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from howsure_lab.experiments.blocks import alternate_blocks
from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.steering.drives import Drive, find_drives
from howsure_lab.experiments.steering.render import render
from howsure_lab.experiments.steering.scenes import CONDITIONS, draw_scenes, steering

# Every part of the rendered data has scenes of its own.
_SEEDS = {"train": 1, "validation": 2, "test": 3}
# The public drives have 20 frames per second.
_FRAME_RATE = 20
_BLOCK_SECONDS = 14
_GAP_SECONDS = 2


@dataclass(frozen=True, eq=False)
class SteeringData:
    """Training, held-out and test data; `tests` has one entry per condition."""

    train: Pairs
    validation: Pairs
    tests: Mapping[str, Pairs]


@dataclass(frozen=True)
class Counts:
    """How many images each part has; of every condition for the tests."""

    train: int
    validation: int
    test: int


def rendered_data(counts: Counts, size: int, noise_var: float) -> SteeringData:
    """Roads as a camera with noise of variance `noise_var` reads them."""

    def part(name: str, count: int, condition: str = "clear") -> Pairs:
        seed = 100 * _SEEDS[name] + CONDITIONS.index(condition)
        scenes = draw_scenes(count, seed, condition)
        return Pairs(render(scenes, size), steering(scenes)).with_noise(noise_var, seed)

    tests = {condition: part("test", counts.test, condition) for condition in CONDITIONS}
    return SteeringData(part("train", counts.train), part("validation", counts.validation), tests)


@dataclass(frozen=True, eq=False)
class RealSplit:
    """Frames of the real drives; those of the test drive by position."""

    train: tuple[Drive, ...]
    test: Drive
    validation_frames: Tensor  # (n,)
    test_frames: Tensor  # (m,)


def split_drives(folder: Path) -> RealSplit:
    """The drives with "train" in their name train; the one with "test" is split by blocks.

    Blocks of 14 seconds go to tuning and to testing in turn; the 2 seconds between them are left
    out, so that the frames of one scene are on one side.
    """
    drives = find_drives(folder)
    train = tuple(drive for drive in drives if "train" in drive.name)
    tests = [drive for drive in drives if "test" in drive.name]
    if len(tests) != 1:
        raise ValueError(
            f"`{folder}` has the drives {[drive.name for drive in drives]}; one folder, and only "
            'one, must have "test" in its name.'
        )
    test = tests[0]
    per_second = _FRAME_RATE / frame_step(test)
    block, gap = round(_BLOCK_SECONDS * per_second), round(_GAP_SECONDS * per_second)
    validation, testing = alternate_blocks(len(test), block=max(block, 1), gap=max(gap, 1))
    return RealSplit(train, test, validation, testing)


def frame_step(drive: Drive) -> int:
    """How many frames of the camera one frame of the drive stands for, by the file names."""
    numbers = [path.stem for path in drive.frames[:2]]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return 1
    step = int(numbers[1]) - int(numbers[0])
    # Time stamps count nanoseconds, not frames.
    return step if 1 <= step <= _FRAME_RATE else 1


def frames_of(drive: Drive, chosen: Tensor) -> Pairs:
    """Some frames of a drive with their angles."""
    return Pairs(drive.images(chosen), drive.angles[chosen])


def spread_out(positions: Tensor, count: int) -> Tensor:
    """About `count` of the positions, evenly spread; all if there are fewer."""
    chosen = torch.linspace(0, len(positions) - 1, min(count, len(positions))).round().long()
    return positions[chosen]


def real_data(split: RealSplit, counts: Counts) -> SteeringData:
    """The frames of the real drives as pairs; reads only the frames that are used."""
    per_drive = -(-counts.train // max(len(split.train), 1))
    training = [frames_of(d, spread_out(torch.arange(len(d)), per_drive)) for d in split.train]
    if not training:
        raise ValueError('No drive has "train" in its name; retraining needs one.')
    return SteeringData(
        Pairs(torch.cat([p.x for p in training]), torch.cat([p.y for p in training])),
        frames_of(split.test, spread_out(split.validation_frames, counts.validation)),
        {"test drive": frames_of(split.test, spread_out(split.test_frames, counts.test))},
    )
