"""The steering task's data: rendered roads or real drives, split so that no part meets another."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from howsure_lab.experiments.steering.scenes import CONDITIONS, draw_scenes, render, steering
from howsure_lab.experiments.training import Pairs, evenly, joined
from howsure_lab.optional import imported


def alternate_blocks(count: int, *, block: int, gap: int) -> tuple[Tensor, Tensor]:
    """Positions of two parts that take turns: blocks of `block`, `gap` unused between them.

    Consecutive positions are never in different parts, as long as the gap is at least 1: the
    nearest two positions of different parts are `gap + 1` apart.
    """
    if block < 1 or gap < 1:
        raise ValueError(f"`block` and `gap` must be at least 1, not {block} and {gap}.")
    if count < 2 * block + gap:
        raise ValueError(
            f"{count} positions are too few for two blocks of {block} with {gap} between them."
        )
    position = torch.arange(count)
    turn, place = position // (block + gap), position % (block + gap)
    used = place < block
    return position[used & (turn % 2 == 0)], position[used & (turn % 2 == 1)]


# As DroNet sees a frame: gray, resized, the middle of the lower part.
_RESIZED = (320, 240)
_CROP = 200
# File names and columns of the public exports: Udacity's own, the reader's of rwightman, ours.
_FILES = ("steering.csv", "interpolated.csv", "final_example.csv", "CH2_final_evaluation.csv")
_FRAME_COLUMNS = ("frame", "filename", "frame_id")
_ANGLE_COLUMNS = ("steering_angle", "angle")


@dataclass(frozen=True, eq=False)
class Drive:
    """The frames of one drive, in the order of time."""

    name: str
    frames: tuple[Path, ...]
    angles: Tensor  # (frames, 1), radians

    def __len__(self) -> int:
        return len(self.frames)

    def images(self, chosen: Tensor) -> Tensor:  # (chosen, 1, 200, 200)
        """The chosen frames as DroNet sees them, in [0, 1]."""
        return torch.stack([read_frame(self.frames[i]) for i in chosen.tolist()])

    def pairs(self, positions: Tensor, count: int) -> Pairs:
        """About `count` of the frames at these positions, evenly spread, with their angles."""
        chosen = positions[evenly(len(positions), count)]
        return Pairs(self.images(chosen), self.angles[chosen])


def find_drives(folder: str | Path) -> tuple[Drive, ...]:
    """All drives in a folder and its subfolders, in the order of their names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder `{folder}`.")
    tables = sorted(path for name in _FILES for path in folder.glob(f"**/{name}"))
    if not tables:
        raise FileNotFoundError(
            f"There is no drive in `{folder}`: a drive is a folder with one of {list(_FILES)} and "
            "its frames."
        )
    return tuple(read_drive(table) for table in tables)


def read_drive(table: str | Path) -> Drive:
    """The drive that a CSV file describes; frames are looked for beside it and in `center/`."""
    table = Path(table)
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"`{table}` has no rows.")
    frame, angle = (_column(table, rows[0], names) for names in (_FRAME_COLUMNS, _ANGLE_COLUMNS))
    # A `frame_id` names a frame in one export, and beside a file name the camera.
    if frame != "frame_id":
        rows = [row for row in rows if row.get("frame_id") in (None, "", "center_camera")]
    frames = tuple(_frame_path(table.parent, row[frame]) for row in rows)
    angles = torch.tensor([[float(row[angle])] for row in rows], dtype=torch.float32)
    if not bool(torch.isfinite(angles).all()):
        raise ValueError(f"`{table}` has steering angles that are not finite; leave them out.")
    return Drive(table.parent.name, frames, angles)


def _column(table: Path, row: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(f"`{table}` has the columns {list(row)}, but none of {list(names)}.")


def _frame_path(folder: Path, name: str) -> Path:
    for below, suffix in product(("", "center", "images"), ("", ".jpg", ".png")):
        if (path := folder / below / f"{name}{suffix}").is_file():
            return path
    raise FileNotFoundError(f"The frame `{name}` is not in `{folder}` nor in its `center` folder.")


def read_frame(path: Path) -> Tensor:  # (1, 200, 200)
    """A frame as DroNet sees it; one that is already gray and 200 x 200 stays as it is."""
    image_module = imported("PIL.Image", "Frames need pillow", "pillow")
    with image_module.open(path) as image:
        gray = image.convert("L")
    if gray.size != (_CROP, _CROP):
        left, top = (_RESIZED[0] - _CROP) // 2, _RESIZED[1] - _CROP
        resized = gray.resize(_RESIZED, image_module.Resampling.BILINEAR)
        gray = resized.crop((left, top, left + _CROP, top + _CROP))
    return torch.from_numpy(np.array(gray, np.float32)).unsqueeze(0) / 255


# Every part of the rendered data has scenes of its own.
_SEEDS = {"train": 1, "validation": 2, "test": 3}
_FRAME_RATE = 20  # of the public drives, per second


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
    block, gap = (max(round(seconds * per_second), 1) for seconds in (14, 2))
    return RealSplit(train, test, *alternate_blocks(len(test), block=block, gap=gap))


def frame_step(drive: Drive) -> int:
    """How many frames of the camera one frame of the drive stands for, by the file names."""
    numbers = [path.stem for path in drive.frames[:2]]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return 1
    step = int(numbers[1]) - int(numbers[0])
    # Time stamps count nanoseconds, not frames.
    return step if 1 <= step <= _FRAME_RATE else 1


def real_data(split: RealSplit, counts: Counts) -> SteeringData:
    """The frames of the real drives as pairs; reads only the frames that are used."""
    if not split.train:
        raise ValueError('No drive has "train" in its name; retraining needs one.')
    per_drive = -(-counts.train // len(split.train))
    training = [drive.pairs(torch.arange(len(drive)), per_drive) for drive in split.train]
    test = split.test
    return SteeringData(
        joined(training),
        test.pairs(split.validation_frames, counts.validation),
        {"test drive": test.pairs(split.test_frames, counts.test)},
    )
