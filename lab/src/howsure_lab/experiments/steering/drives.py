"""Udacity drives: frames of a camera with the driver's steering angle, read from CSV and images."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# As DroNet sees a frame: gray, resized, the middle of the lower part.
_RESIZED = (320, 240)
_CROP = 200
# File names and columns of the public exports: Udacity's own, the reader's of rwightman, ours.
_FILES = ("steering.csv", "interpolated.csv", "final_example.csv", "CH2_final_evaluation.csv")
_FRAME_COLUMNS = ("frame", "filename", "frame_id")
_ANGLE_COLUMNS = ("steering_angle", "angle")
_FOLDERS = ("", "center", "images")
_SUFFIXES = ("", ".jpg", ".png")


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
    rows = [row for row in rows if row.get("frame_id") in (None, "", "center_camera", *_ids(row))]
    frame, angle = (_column(table, rows[0], names) for names in (_FRAME_COLUMNS, _ANGLE_COLUMNS))
    found = [_frame_path(table.parent, row[frame]) for row in rows]
    angles = torch.tensor([[float(row[angle])] for row in rows], dtype=torch.float32)
    if not bool(torch.isfinite(angles).all()):
        raise ValueError(f"`{table}` has steering angles that are not finite; leave them out.")
    return Drive(table.parent.name, tuple(found), angles)


def _ids(row: dict[str, str]) -> Iterator[str]:
    """A `frame_id` names a camera in one export and a frame in another, which has no file name."""
    if "frame_id" in row and "filename" not in row and "frame" not in row:
        yield row["frame_id"]


def _column(table: Path, row: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(f"`{table}` has the columns {list(row)}, but none of {list(names)}.")


def _frame_path(folder: Path, name: str) -> Path:
    candidates = [folder / sub / f"{name}{suffix}" for sub in _FOLDERS for suffix in _SUFFIXES]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"The frame `{name}` is not in `{folder}` nor in its `center` folder.")


def read_frame(path: Path) -> Tensor:  # (1, 200, 200)
    """A frame as DroNet sees it; one that is already gray and 200 x 200 stays as it is."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("Frames need pillow: `pip install pillow`.") from None
    with Image.open(path) as image:
        gray = image.convert("L")
    if gray.size != (_CROP, _CROP):
        left, top = (_RESIZED[0] - _CROP) // 2, _RESIZED[1] - _CROP
        resized = gray.resize(_RESIZED, Image.Resampling.BILINEAR)
        gray = resized.crop((left, top, left + _CROP, top + _CROP))
    return torch.from_numpy(np.array(gray, np.float32)).unsqueeze(0) / 255
