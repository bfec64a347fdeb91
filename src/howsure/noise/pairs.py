"""Pairs of elements of repeated frames, by how far they are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Elements up to so many steps apart are neighbours; what those further apart share is an offset.
REACH = 3
# Shorter axes have too few pairs beyond the neighbours: they count as channels.
_SHORTEST = 4 * (REACH + 1)
# The middle of larger images says enough, in less time.
_LONGEST = 256


@dataclass(frozen=True)
class Layout:
    """Which axes of a frame have neighbours, and which are channels; counted from the end."""

    shape: tuple[int, ...]
    spatial: tuple[int, ...]
    folded: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Layout:
        """Of the last two axes, those that are long enough have neighbours."""
        axes = range(-len(shape), 0)
        spatial = tuple(axis for axis in axes if axis >= -2 and shape[axis] >= _SHORTEST)
        return cls(shape, spatial, tuple(axis for axis in axes if axis not in spatial))

    @property
    def channels(self) -> int:
        """How many planes a frame has."""
        return math.prod(self.shape[axis] for axis in self.folded)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what is looked at of a plane; 1 where there is none."""
        height, width = (1, 1, *(self._kept(axis) for axis in self.spatial))[-2:]
        return height, width

    def planes(self, frames: Tensor) -> Tensor:  # (frames, channels, height, width)
        """The middle of the frames, with the channels in front."""
        middle = frames
        for axis in self.spatial:
            start = (frames.shape[axis] - self._kept(axis)) // 2
            middle = middle.narrow(axis, start, self._kept(axis))
        moved = middle.movedim(self.spatial, tuple(range(-len(self.spatial), 0)))
        return moved.to(torch.float64).reshape(len(frames), self.channels, *self.size)

    def _kept(self, axis: int) -> int:
        return min(self.shape[axis], _LONGEST)


def pair_sums(planes: Tensor) -> dict[str, Tensor]:  # (frames, channels, height, width)
    """Sums of products over pairs of elements, by where the two are; of ones, their numbers."""
    rows, columns, whole = planes.sum(3), planes.sum(2), planes.sum((2, 3))
    near = _near(planes)  # (2 reach + 1, 2 reach + 1)
    if planes.shape[2] > 1:
        far = whole.square().sum() - _band(rows) - _band(columns) + near.sum()
    else:
        far = whole.square().sum() - near[REACH].sum()
    # Of different channels: without pairs in one place, and for the frame in one row or column.
    places, lines = _between(planes), [_between(rows), _between(columns)]
    apart = _between(whole)
    if planes.shape[2] > 1:
        apart = apart - sum(lines) + places
    elif planes.shape[3] > 1:
        apart = apart - places
    return {
        "near": near,
        "far": far,
        "row": rows.square().sum() - near[REACH].sum(),
        "column": columns.square().sum() - near[:, REACH].sum(),
        "channels": apart,
        "rows of channels": lines[0] - places,
        "columns of channels": lines[1] - places,
        "elements": planes.sum(),
    }


def _near(planes: Tensor) -> Tensor:
    """By steps down and to the right, from -reach to reach."""
    height, width = planes.shape[2:]
    found = planes.new_zeros(2 * REACH + 1, 2 * REACH + 1)
    for down in range(min(REACH + 1, height)):
        for right in range(-min(REACH, width - 1), min(REACH + 1, width)):
            left = max(0, -right)
            one = planes[:, :, : height - down, left : width - max(0, right)]
            two = planes[:, :, down:, left + right : width + min(0, right)]
            product = (one * two).sum()
            found[REACH + down, REACH + right] = product
            found[REACH - down, REACH - right] = product
    return found


def _band(lines: Tensor) -> Tensor:  # (frames, channels, lines)
    """Products of sums of lines up to `reach` apart, both ways."""
    apart = range(1, min(REACH + 1, lines.shape[2]))
    others = [2 * (lines[..., step:] * lines[..., :-step]).sum() for step in apart]
    return sum(others, start=lines.square().sum())


def _between(sums: Tensor) -> Tensor:  # (frames, channels, ...)
    """Products of the sums of different channels."""
    return (sums.sum(1).square() - sums.square().sum(1)).sum()
