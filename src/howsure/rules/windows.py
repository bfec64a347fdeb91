"""The windows of a pool along one axis, and their elements as slices of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from howsure.blocks import as_in_memory
from howsure.concrete import is_traced
from howsure.gaussian import Gaussian, wrap
from howsure.responses import Probed


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


def taps(x: Tensor, axis: int, window: Window) -> Iterable[Tensor]:
    """The first elements of all windows along the axis, the second ones, ..."""
    if window.kernel == window.stride == 1:
        return [x]
    axis %= x.dim()
    if isinstance(x, Gaussian) and not is_traced():
        moments = x.read()
        if isinstance(moments, Probed) and moments.mean.requires_grad:
            return _with_one_gradient(x, moments, axis, window)
    return (
        x.narrow(axis, part.start, part.stop - part.start)[_at(axis, slice(None, None, part.step))]
        for part in window.slices(x.shape[axis])
    )


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)


def _with_one_gradient(
    x: Gaussian, moments: Probed, axis: int, window: Window
) -> Iterator[Gaussian]:
    """The same for backward passes."""
    interpreter: Any = x.interpreter
    means: Any = _Taps.apply(moments.mean, axis, window)
    for mean, part in zip(means, window.slices(moments.mean.shape[axis]), strict=True):
        interpreter.count_operations(2)  # those that `taps` would have called
        var, probes = moments.var[_at(axis, part)], moments.probes[_at(axis + 1, part)]
        yield wrap(Probed(mean, var, None, probes), interpreter, x.memory)


class _Taps(torch.autograd.Function):
    """Slices whose gradients are summed in one tensor, in the layout of the whole.

    Torch's own slices make a tensor of zeros for each, with the channels in front, and add them.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, axis: int, window: Window) -> tuple[Tensor, ...]:
        ctx.axis, ctx.parts = axis, window.slices(whole.shape[axis])
        order, ctx.back = as_in_memory(whole)
        ctx.shape = [whole.shape[axis] for axis in order]
        return tuple(whole[_at(axis, part)] for part in ctx.parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        total = gradients[0].new_zeros(ctx.shape).permute(ctx.back)
        for part, gradient in zip(ctx.parts, gradients, strict=True):
            total[_at(ctx.axis, part)].add_(gradient)
        return total, None, None
