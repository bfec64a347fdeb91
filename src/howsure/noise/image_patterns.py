"""Patterns in images and channels: offsets that many elements share, and blurred noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.noise.pattern import Pattern, Row
from howsure.noise.values import Root, Value, as_value, check, like

# Convolutions by the number of axes that they go along.
_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# A Gaussian kernel ends after so many of its stds, where it has fallen to 3e-4 of its middle.
_REACH = 4.0
# Readings along an axis for the square root of a spectrum: a kernel of neighbours fades out.
_GRID = 32


@dataclass(frozen=True, eq=False)
class CommonMode(Pattern):
    """One offset for all elements of an input, or one for each index along some axes."""

    kind: ClassVar[str] = "common_mode"
    axis: int | tuple[int, ...] | None = None

    def pattern(self, row: Row) -> Root:
        """One number for each index, spread over all other axes."""
        own = () if self.axis is None else (self.axis,) if isinstance(self.axis, int) else self.axis
        kept = {row.at(axis) for axis in own}
        dims = len(row.shape)
        shape = tuple(size if i - dims in kept else 1 for i, size in enumerate(row.shape))
        return Root(shape, lambda z, rows: z.expand(-1, -1, *row.shape))


@dataclass(frozen=True, eq=False)
class Rows(CommonMode):
    """One offset for each line of an image."""

    kind: ClassVar[str] = "rows"
    axis: int | tuple[int, ...] | None = -2


@dataclass(frozen=True, eq=False)
class Blurred(Pattern):
    """White noise through a kernel: a tensor, or the std of a Gaussian in pixels."""

    kind: ClassVar[str] = "blurred"
    kernel: Value
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = not isinstance(self.kernel, Tensor) or self.kernel.dim() == 0
        check("kernel", self.kernel, positive=is_number, signed=not is_number)
        taps = self._taps()
        if not 1 <= taps.dim() <= 3 or not taps.numel():
            raise ValueError(
                f"`kernel` has shape {tuple(taps.shape)}; give a number (a Gaussian of that std), "
                "or weights along 1 to 3 axes."
            )
        if self.axes is not None and len(self.axes) != taps.dim():
            raise ValueError(
                f"`kernel` has {taps.dim()} axes, and `axes` names {len(self.axes)}; name as many."
            )

    def var_at(self, x: Tensor) -> Tensor:
        """std**2 times the sum of the squared weights."""
        return super().var_at(x) * like(self._taps(), x).square().sum()

    def pattern(self, row: Row) -> Root:
        """White noise that reaches beyond the image: the variance is the same everywhere."""
        taps = self._taps()
        axes = [row.at(axis) for axis in self.axes or range(-taps.dim(), 0)]
        if len(set(axes)) < len(axes):
            raise ValueError(f"`axes` names an axis twice: {self.axes}.")
        last = range(-len(axes), 0)
        others = [size for i, size in enumerate(row.shape) if i - len(row.shape) not in axes]
        field = [row.shape[axis] + size - 1 for axis, size in zip(axes, taps.shape, strict=True)]
        convolve = _CONVOLUTIONS[len(axes)]

        def apply(z: Tensor, rows: slice | Tensor) -> Tensor:
            planes = z.reshape(-1, 1, *field)
            # A convolution of networks is a correlation: mirrored taps make it a convolution.
            mirrored = taps.to(z.dtype).to(z.device).flip(*last)[None, None]
            blurred = convolve(planes, mirrored)
            whole = blurred.reshape(*z.shape[:2], *others, *blurred.shape[2:])
            return whole.movedim(tuple(last), tuple(axes))

        return Root((*others, *field), apply)

    def _taps(self) -> Tensor:
        if isinstance(self.kernel, Tensor) and self.kernel.dim():
            return self.kernel
        width = float(self.kernel)
        reach = max(1, math.ceil(_REACH * width))
        line = torch.exp(-torch.arange(-reach, reach + 1).double().square() / (2 * width**2))
        line = line / line.norm()
        taps = line
        for _ in range(1, 2 if self.axes is None else len(self.axes)):
            taps = taps.unsqueeze(-1) * line
        return taps


def common_mode(std: object, axis: int | Sequence[int] | None = None) -> CommonMode:
    """Noise that all elements of an input share: flicker of the light, a drifting black level.

    Args:
        std: Standard deviation of the offset: a number, or a tensor that broadcasts to the input
            and says how much of the offset each element gets.
        axis: The axes that have offsets of their own: 1 for one offset for each channel of a batch
            of images, (1, 2) for one for each line of each channel; `None` for one offset in all.
    """
    return CommonMode(as_value(std, "std"), _axes(axis))


def rows(std: object, axis: int | Sequence[int] = -2) -> Rows:
    """Line noise of a camera: one offset for each row of the image, in all channels the same.

    Args:
        std: Standard deviation of the offsets, as in `common_mode`.
        axis: The axis that counts the rows; -1 for columns, (1, -2) for rows whose channels have
            offsets of their own.
    """
    return Rows(as_value(std, "std"), _axes(axis))


def blurred(std: object, kernel: object, axes: int | Sequence[int] | None = None) -> Blurred:
    """White noise after a convolution: demosaicing, denoising, the optics of a scanner.

    The white noise reaches beyond the image, so that all pixels have the same variance.

    Args:
        std: Standard deviation of the white noise, before the kernel. Divide the kernel by its
            norm, the root of the sum of its squares, and it is that of the readings as well.
        kernel: The weights, (height, width), or along 1 or 3 axes; or a number, the std in pixels
            of a Gaussian of norm 1.
        axes: The axes along which it goes; the last ones, unless told.
    """
    found = _axes(axes)
    return Blurred(
        as_value(std, "std"),
        as_value(kernel, "kernel"),
        (found,) if isinstance(found, int) else found,
    )


def kernel_of(correlations: Tensor) -> Tensor:
    """The symmetric kernel of norm 1 whose noise has these correlations, by the spectrum's root."""
    dims, size = correlations.dim(), len(correlations)  # from -reach to reach
    reach = size - 1  # of the kernel: twice as far, since it fades out
    spectrum = correlations.new_zeros((_GRID,) * dims)
    spectrum[(slice(0, size),) * dims] = correlations
    centred = spectrum.roll((-(size // 2),) * dims, tuple(range(dims)))
    root = torch.fft.fftn(centred).real.clamp(min=0).sqrt()
    whole = torch.fft.ifftn(root).real.roll((reach,) * dims, tuple(range(dims)))
    kernel = whole[(slice(0, 2 * reach + 1),) * dims]
    return kernel / kernel.norm()


def _axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    if axis is None or isinstance(axis, int):
        return axis
    if not isinstance(axis, Sequence) or not all(isinstance(each, int) for each in axis):
        raise TypeError(f"The axis of a noise is {axis!r}; give the number of an axis, or several.")
    return tuple(axis)
