"""The windows of a pool along one axis, and their elements as slices of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.value import Moments


class Window(NamedTuple):
    """The window of a pool without padding along one axis."""

    kernel: int
    stride: int
    dilation: int

    @property
    def span(self) -> int:
        """From its first element to its last."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: int) -> int:
        """How many windows fit."""
        return (size - self.span) // self.stride + 1

    def slices(self, size: int) -> list[slice]:
        """The first elements of all windows, the second ones, ..."""
        end = (self.count(size) - 1) * self.stride + 1
        return [
            slice(offset, offset + end, self.stride)
            for offset in range(0, self.span, self.dilation)
        ]


def padded(
    x: Moments,
    sides: Sequence[int],  # before and after, of the last axis first, as `pad` takes them
) -> Moments:
    """The input with a border that is never the largest."""
    if not any(sides):
        return x
    # Far below any activation, but finite: -inf - (-inf) is not a number.
    lowest = torch.finfo(x.mean.dtype).min / 4
    return Moments(F.pad(x.mean, sides, value=lowest), F.pad(x.var, sides))


def taps(x: Tensor, axis: int, window: Window) -> Iterable[Tensor]:
    """The first elements of all windows along the axis, the second ones, ..."""
    if window.kernel == window.stride == 1:
        return [x]
    axis %= x.dim()
    return (
        x.narrow(axis, part.start, part.stop - part.start)[_at(axis, slice(None, None, part.step))]
        for part in window.slices(x.shape[axis])
    )


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)
