"""Noise that is correlated between the elements of an input: by a matrix, a pattern, or in time."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.noise.base import (
    Index,
    Noise,
    Numbers,
    Root,
    Value,
    as_value,
    batch_first,
    check,
    input_shape,
    like,
    widen,
)

# Relative to the largest entry of a covariance: the asymmetry and the negative eigenvalues that
# rounding to float32 leaves.
_ROUNDING = 1e-5
# A Gaussian kernel ends after so many of its stds, where it has fallen to 3e-4 of its middle.
_REACH = 4.0


def input_axis(axis: int, x: Tensor, batch_dim: int | None) -> int:
    """The axis `axis` of the batch `x` as an axis of one input, counted from the end."""
    if not isinstance(axis, int):
        raise TypeError(f"The axis of a noise is {axis!r}; give the number of an axis.")
    dims = x.dim()
    if not -dims <= axis < dims:
        raise ValueError(
            f"The noise goes along axis {axis}, and the input has {dims} axes; name one of them, "
            f"from {-dims} to {dims - 1}."
        )
    axes = [number for number in range(dims) if batch_dim is None or number != batch_dim % dims]
    if axis % dims not in axes:
        raise ValueError(
            f"The noise goes along axis {axis}, which counts the inputs of a batch, and these have "
            "independent noise; name another axis, or pass `batch_dim=None` if a call is one input."
        )
    return axes.index(axis % dims) - len(axes)


@dataclass(frozen=True, eq=False)
class Correlated(Noise):
    """Noise of covariance factor factor', over all elements of an input or along one axis."""

    kind: ClassVar[str] = "correlated"
    factor: Tensor  # ([batch,] elements, sources)
    axis: int | None = None

    def __post_init__(self) -> None:
        self._convert("factor", signed=True)
        shape = np.shape(self.factor)
        if len(shape) not in (2, 3):
            raise ValueError(
                f"`factor` has shape {shape}; give a matrix (elements, sources), whose product "
                "with its transpose is the covariance."
            )

    def var_at(self, x: Tensor) -> Tensor:
        """The sums of squares of the factor's rows."""
        var = like(self.factor, x).square().sum(-1)  # ([batch,] elements)
        if self.axis is not None:
            axis = input_axis(self.axis, x, None)
            self._check_elements(x.shape[axis], f"axis {self.axis} of the input has")
            ones = (1,) * (x.dim() - var.dim())
            return var.reshape(*var.shape[:-1], *ones, var.shape[-1]).movedim(-1, axis)
        size = math.prod(x.shape[1:])
        is_one_input = var.dim() == 1 and size != len(var) == x.numel()
        self._check_elements(x.numel() if is_one_input else size, "an input has")
        return var.reshape(x.shape if is_one_input else (*var.shape[:-1], *x.shape[1:]))

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The factor, applied to the flat input or along the axis."""
        factor, shape = like(self.factor, widen(x)), input_shape(x, batch_dim)
        batch = 1 if batch_dim is None else x.shape[batch_dim]
        if factor.dim() == 3 and len(factor) != batch:
            raise ValueError(
                f"The noise has a covariance for each of {len(factor)} inputs, and the batch has "
                f"{batch}; give one for all, or a batch of {len(factor)}."
            )

        def mix(z: Tensor, index: Index) -> Tensor:
            """The factor times the sources, the last axis of z."""
            matrix = factor.to(z.dtype)
            if matrix.dim() == 2:
                return z @ matrix.mT
            flat = z.reshape(*z.shape[:2], -1, z.shape[-1])
            return (flat @ matrix[index].mT).reshape(*z.shape[:-1], matrix.shape[-2])

        sources = factor.shape[-1]
        if self.axis is None:
            self._check_elements(math.prod(shape), "an input has")
            return Root((sources,), lambda z, i: mix(z, i).reshape(*z.shape[:2], *shape))
        axis = input_axis(self.axis, x, batch_dim)
        self._check_elements(shape[axis], f"axis {self.axis} of the input has")
        others = _without(shape, [axis])
        return Root((*others, sources), lambda z, i: mix(z, i).movedim(-1, axis))

    def _check_elements(self, count: int, place: str) -> None:
        elements = self.factor.shape[-2]
        if count != elements:
            raise ValueError(
                f"The noise has a covariance of {elements} elements, and {place} {count}; give one "
                "for all elements of an input, in the order of `flatten`, or `axis=` for one along "
                "an axis."
            )


def correlated(
    covariance: Numbers = None, *, factor: Numbers = None, axis: int | None = None
) -> Correlated:
    """Noise of a given covariance between the elements of an input.

    A factor F with few columns is cheap for large inputs: the noise is F z with z standard normal,
    and its covariance F F'.

    Args:
        covariance: A symmetric matrix without negative eigenvalues, (elements, elements), for the
            elements of an input in the order of `flatten`; or (batch, elements, elements), one for
            each input. Or give `factor`.
        factor: (elements, sources), or (batch, elements, sources).
        axis: The axis of the input whose elements it is about, as for the channels of a camera or
            the axes of a gyroscope; whatever else the input has repeats it independently.

    Examples:
        >>> noise = hs.noise.correlated([[0.04, 0.01], [0.01, 0.09]])
        >>> noise(torch.zeros(1, 2))
        tensor([0.0400, 0.0900])
    """
    if (covariance is None) == (factor is None):
        raise ValueError("Give `correlated` either `covariance=` or `factor=`, and not both.")
    if axis is not None and not isinstance(axis, int):
        raise TypeError(f"`axis` is a {type(axis).__name__}; give the number of an axis.")
    name, value = ("factor", factor) if covariance is None else ("covariance", covariance)
    matrix = torch.as_tensor(as_value(value, name))
    check(name, matrix, signed=True)
    return Correlated(matrix if covariance is None else _square_root(matrix), axis)


def _square_root(covariance: Tensor) -> Tensor:
    """A matrix whose product with its transpose is the covariance; an error if there is none."""
    sizes = covariance.shape[-2:]
    if covariance.dim() not in (2, 3) or sizes[0] != sizes[1] or not covariance.numel():
        raise ValueError(
            f"`covariance` has shape {tuple(covariance.shape)}; it must be square, (elements, "
            "elements), or one such matrix for each input."
        )
    # Not every device has float64, which a nearly singular matrix needs.
    matrix = covariance.cpu().double()
    asymmetry = float((matrix - matrix.mT).detach().abs().amax())
    if asymmetry > _ROUNDING * float(matrix.detach().abs().amax()):
        raise ValueError(
            "`covariance` is not symmetric; average it with its transpose if the difference is "
            "rounding, or give `factor=` if it is a square root."
        )
    root, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()):  # It is singular, or has no root.
        values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
        lowest, highest = float(values.detach().min()), float(values.detach().max())
        if lowest < -_ROUNDING * highest:
            raise ValueError(
                f"`covariance` has the negative eigenvalue {lowest:.3g}, as no covariance has; are "
                "some numbers correlations, and others variances?"
            )
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return root.to(torch.promote_types(covariance.dtype, torch.float32)).to(covariance.device)


@dataclass(frozen=True, eq=False)
class Pattern(Noise):
    """A pattern that depends on the shape of an input alone, times a std."""

    std: Value

    def __post_init__(self) -> None:
        self._convert("std")

    @abstractmethod
    def pattern(self, x: Tensor, batch_dim: int | None) -> Root:
        """The root for a std of 1 and inputs of the shape of `x`."""

    def var_at(self, x: Tensor) -> Tensor:
        """std**2, for patterns of variance 1."""
        return like(self.std, x).square()

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """Std times the pattern."""
        if isinstance(self.std, Tensor):
            self(x)  # an error in one sentence if the std does not broadcast to the input
        std = batch_first(like(self.std, widen(x)), x, batch_dim)
        return self.pattern(x, batch_dim).times(std)


@dataclass(frozen=True, eq=False)
class CommonMode(Pattern):
    """One offset for all elements of an input, or one for each index along some axes."""

    kind: ClassVar[str] = "common_mode"
    axis: int | tuple[int, ...] | None = None

    def pattern(self, x: Tensor, batch_dim: int | None) -> Root:
        """One number for each index, expanded along all other axes."""
        shape = input_shape(x, batch_dim)
        kept = [input_axis(axis, x, batch_dim) for axis in _axes(self.axis)]
        sizes = tuple(size if i - len(shape) in kept else 1 for i, size in enumerate(shape))
        return Root(sizes, lambda z, _: z.expand(-1, -1, *shape))


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
        is_number = np.ndim(self.kernel) == 0
        self._convert("kernel", positive=is_number, signed=not is_number)
        weights = self._weights
        if not 1 <= weights.dim() <= 3 or not weights.numel():
            raise ValueError(
                f"`kernel` has shape {tuple(weights.shape)}; give a number (a Gaussian of that "
                "std), or weights along 1 to 3 axes."
            )
        if self.axes is not None and len(self.axes) != weights.dim():
            raise ValueError(
                f"`kernel` has {weights.dim()} axes, and `axes` names {len(self.axes)}; name as "
                "many."
            )

    @functools.cached_property
    def _weights(self) -> Tensor:
        """The kernel; a Gaussian of norm 1 if it is a number."""
        if isinstance(self.kernel, Tensor) and self.kernel.dim():
            return self.kernel
        width = float(self.kernel)
        reach = max(1, math.ceil(_REACH * width))
        line = torch.exp(-torch.arange(-reach, reach + 1).double().square() / (2 * width**2))
        line = line / line.norm()
        weights = line
        for _ in range(1, 2 if self.axes is None else len(self.axes)):
            weights = weights.unsqueeze(-1) * line
        return weights

    def var_at(self, x: Tensor) -> Tensor:
        """std**2 times the sum of the squared weights."""
        return super().var_at(x) * like(self._weights, x).square().sum()

    def pattern(self, x: Tensor, batch_dim: int | None) -> Root:
        """White noise that reaches beyond the image: the variance is the same everywhere."""
        shape, weights = input_shape(x, batch_dim), self._weights
        last = tuple(range(-weights.dim(), 0))
        axes = [input_axis(axis, x, batch_dim) for axis in self.axes or last]
        if len(set(axes)) < len(axes):
            raise ValueError(f"`axes` names an axis twice: {self.axes}.")
        others = _without(shape, axes)
        field = [shape[axis] + size - 1 for axis, size in zip(axes, weights.shape, strict=True)]
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(axes) - 1]

        def apply(z: Tensor, _: Index) -> Tensor:
            # A convolution of networks is a correlation: flipped weights make it a convolution.
            flipped = weights.to(z.dtype).to(z.device).flip(*last)[None, None]
            planes = convolve(z.reshape(-1, 1, *field), flipped)
            return planes.reshape(*z.shape[:2], *others, *planes.shape[2:]).movedim(last, axes)

        return Root((*others, *field), apply)


@dataclass(frozen=True, eq=False)
class Ar1(Pattern):
    """Noise whose correlation falls by the same factor with every step along an axis."""

    kind: ClassVar[str] = "ar1"
    correlation: float
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.correlation, int | float) or not -1 < self.correlation < 1:
            raise ValueError(
                f"`correlation` is {self.correlation!r}; it must be a number between -1 and 1. If "
                "it is 1, the noise is an offset, `common_mode`, or a walk, `random_walk`."
            )

    def pattern(self, x: Tensor, batch_dim: int | None) -> Root:
        """e[0] = z[0], e[t] = correlation e[t - 1] + sqrt(1 - correlation**2) z[t].

        The recursion by doubling, in log2 of the length steps: after a step of length k, e[t] holds
        the last 2 k terms of its sum over correlation**j z[t - j].
        """
        axis, factor = input_axis(self.axis, x, batch_dim), float(self.correlation)

        def apply(z: Tensor, _: Index) -> Tensor:
            z = z.movedim(axis, -1)
            e = torch.cat([z[..., :1], (1 - factor**2) ** 0.5 * z[..., 1:]], -1)
            step = 1
            # Beyond, what is remembered is below rounding.
            while step < e.shape[-1] and abs(factor) ** step > torch.finfo(e.dtype).eps:
                e = e + factor**step * F.pad(e[..., :-step], (step, 0))
                step *= 2
            return e.movedim(-1, axis)

        return Root(input_shape(x, batch_dim), apply)


@dataclass(frozen=True, eq=False)
class RandomWalk(Pattern):
    """Noise that adds up steps of the given std along an axis."""

    kind: ClassVar[str] = "random_walk"
    axis: int = 1

    def var_at(self, x: Tensor) -> Tensor:
        """std**2 t for the t-th reading, from 1 on."""
        axis = input_axis(self.axis, x, None)
        count = torch.arange(1, x.shape[axis] + 1, dtype=x.dtype, device=x.device)
        return super().var_at(x) * count.reshape(-1, *(1,) * (-axis - 1))

    def pattern(self, x: Tensor, batch_dim: int | None) -> Root:
        """The sums of z up to each reading."""
        axis = input_axis(self.axis, x, batch_dim)
        return Root(input_shape(x, batch_dim), lambda z, _: z.cumsum(axis))


def common_mode(std: Numbers, axis: int | Sequence[int] | None = None) -> CommonMode:
    """Noise that all elements of an input share: flicker of the light, a drifting black level.

    Args:
        std: Standard deviation of the offset: a number, or a tensor that broadcasts to the input
            and says how much of the offset each element gets.
        axis: The axes with an offset for each index: 1 for one offset per channel of a batch of
            images, (1, 2) for one per line of each channel; `None` for one offset in all.

    Examples:
        >>> noise = hs.noise.common_mode(0.1)
        >>> hs.noise.is_correlated(noise)
        True
    """
    return CommonMode(std, axis if axis is None or isinstance(axis, int) else tuple(axis))


def rows(std: Numbers, axis: int | Sequence[int] = -2) -> Rows:
    """Line noise of a camera: one offset for each row of the image, in all channels the same.

    Args:
        std: Standard deviation of the offsets, as in `common_mode`.
        axis: The axis that counts the rows; -1 for columns, (1, -2) for rows whose channels have
            independent offsets.

    Examples:
        >>> hs.noise.rows(0.1)(torch.zeros(1, 1, 2, 2)).flatten()
        tensor([0.0100])
    """
    return Rows(std, axis if isinstance(axis, int) else tuple(axis))


def blurred(std: Numbers, kernel: Numbers, axes: int | Sequence[int] | None = None) -> Blurred:
    """White noise after a convolution: demosaicing, denoising, the optics of a scanner.

    The white noise reaches beyond the image, so that all pixels have the same variance.

    Args:
        std: Standard deviation of the white noise, before the kernel. Divide the kernel by its
            norm, the root of the sum of its squares, and it is that of the readings as well.
        kernel: The weights, (height, width), or along 1 or 3 axes; or a number, the std in pixels
            of a Gaussian of norm 1.
        axes: The axes along which it goes; the last ones by default.

    Examples:
        >>> noise = hs.noise.blurred(0.1, kernel=[[0.5, 0.5]])
        >>> noise(torch.zeros(1, 1, 1, 3))
        tensor(0.0050)
    """
    return Blurred(std, kernel, None if axes is None else _axes(axes))


def ar1(std: Numbers, correlation: float, axis: int = 1) -> Ar1:
    """Noise with a memory, first-order autoregressive: correlation**k between readings k apart.

    A slowly varying bias with time constant tau, read every dt: correlation exp(-dt / tau).

    Args:
        std: Standard deviation of every reading: a number, or a tensor that broadcasts to the
            input.
        correlation: Correlation of successive readings, between -1 and 1.
        axis: The axis that counts the readings; 1 in a batch of sequences (batch, time, features).

    Examples:
        >>> noise = hs.noise.ar1(std=0.1, correlation=0.9)  # series are (batch, time)
        >>> noise(torch.zeros(1, 3))
        tensor(0.0100)
    """
    number = float(correlation) if isinstance(correlation, Real) else correlation
    return Ar1(std, number, axis)


def random_walk(std: Numbers, axis: int = 1) -> RandomWalk:
    """Noise that walks: a bias that starts from 0 and takes one step before every reading.

    The variance of the t-th reading is std**2 t. Add a `common_mode` if the bias does not start
    from 0.

    Args:
        std: Standard deviation of a step.
        axis: The axis that counts the readings; 1 in a batch of sequences (batch, time, features).

    Examples:
        >>> hs.noise.random_walk(0.1)(torch.zeros(1, 3))
        tensor([0.0100, 0.0200, 0.0300])
    """
    return RandomWalk(std, axis)


def _without(shape: tuple[int, ...], axes: Sequence[int]) -> list[int]:
    """The sizes of all other axes; `axes` are counted from the end."""
    return [size for i, size in enumerate(shape) if i - len(shape) not in axes]


def _axes(axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """No axis, one or several as a tuple."""
    return () if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
