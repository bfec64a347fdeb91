"""Max pools a few rows at a time: all that belongs to a row of the output stays in the cache."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.numerics import outside_vmap
from howsure.moments.rules.closed_forms import larger_of_two
from howsure.moments.value import Moments
from howsure.trees import is_tracing


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


# Elements of the first maximum of a slab.
_SLAB = 30720

Pair = tuple[Tensor, Tensor]


def pooled_in_slabs(
    input: Moments,  # (..., channels, *size)
    windows: Sequence[Window],
    padding: Sequence[int],
) -> Moments | None:
    """Moments of a max pool; `None` where derivatives may be asked for, and inside a trace."""
    if torch.is_grad_enabled() or is_tracing() or input.mean.dtype != input.var.dtype:
        return None
    sides = [side for pad in reversed(padding) for side in (pad, pad)]

    def function(mean: Tensor, var: Tensor) -> Pair:
        image = padded(Moments(mean, var), sides)
        return _slab_by_slab(image.mean, image.var, windows)

    outputs = outside_vmap(function, input.mean, input.var.expand(input.mean.shape))
    return None if outputs is None else Moments(*outputs)


def _slab_by_slab(mean: Tensor, var: Tensor, windows: Sequence[Window]) -> Pair:
    """Slabs are cut along the first pooled axis of every image."""
    dims = len(windows)
    images = [t.reshape(-1, *t.shape[-dims - 1 :]) for t in (mean, var)]
    first, size = windows[0], images[0].shape[2:]
    counts = [window.count(n) for window, n in zip(windows, size, strict=True)]
    row = max(1, images[0][0].numel() // size[0])
    rows = max(1, _SLAB // row)
    shape = (*images[0].shape[:2], *counts)
    outputs = [_like(t, shape) for t in images]
    for index in range(shape[0]):
        for start in range(0, counts[0], rows):
            length = (min(rows, counts[0] - start) - 1) * first.stride + first.span
            slab = [t[index].narrow(1, start * first.stride, length) for t in images]
            done = _pooled_slab(slab[0], slab[1], windows)
            for output, part in zip(outputs, done, strict=True):
                output[index, :, start : start + rows] = part
    lead = mean.shape[: -dims - 1]
    return tuple(t.reshape(*lead, *t.shape[1:]) for t in outputs)  # pyright: ignore


def _like(image: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor of this shape in the layout of an image."""
    last = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=image.dtype, device=image.device, memory_format=layout)


def _pooled_slab(mean: Tensor, var: Tensor, windows: Sequence[Window]) -> Pair:
    """Clark's maximum over the windows of one slab, one axis after the other."""
    for axis, window in enumerate(windows, start=1):
        pairs = zip(taps(mean, axis, window), taps(var, axis, window), strict=True)
        mean, var = functools.reduce(lambda one, two: larger_of_two(*one, *two), pairs)
    return mean, var
