"""Average pools: the variance divides by the number of elements that a window really counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import Draw, Kind, Sample, Samples, rule_of
from howsure.moments.value import Moments


def _image(draw: Draw, dims: int) -> Moments:
    """Two rows with channels; volumes have one, since channels are pooled as rows are."""
    return draw.moments(2, 1 if dims == 3 else 3, *(7, 6, 5)[:dims])


def _windows(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = _image(draw, dims)
        yield Sample(image, 2)
        yield Sample(image, 3, 2, 1)
        yield Sample(image, 3, 2, 1, True, False)
        yield Sample(image, kernel_size=2, stride=3, ceil_mode=True)

    return samples


def _divisor(
    pool: Callable[..., Tensor], size: Sequence[int], like: Tensor, *args: object
) -> Tensor:
    """How many elements each window's average divides by, padding included where it counts.

    Found from the pool itself: a window of ones sums to its valid elements and averages to
    valid elements / divisor.
    """
    ones = torch.ones(1, 1, *size, dtype=like.dtype, device=like.device)
    kernel, stride, padding, ceil_mode, include_pad = args
    total = pool(ones, kernel, stride, padding, ceil_mode, include_pad, 1)
    return total / pool(ones, kernel, stride, padding, ceil_mode, include_pad)


def _pooled(
    pool: Callable[..., Tensor], dims: int, input: Moments, *args: object, divisor: int | None
) -> Moments:
    kernel, _, padding, ceil_mode, _ = args
    extra = () if divisor is None else (divisor,)
    mean, var = pool(input.mean, *args, *extra), pool(input.var, *args, *extra)
    if divisor is not None:
        return Moments(mean, var / divisor)
    if not ceil_mode and not any(per_dim(padding, dims)):
        return Moments(mean, var / math.prod(per_dim(kernel, dims)))
    count = _divisor(pool, input.mean.shape[-dims:], var, *args)
    return Moments(mean, var / count.reshape(count.shape[-dims:]))


def per_dim(value: object, dims: int) -> tuple[int, ...]:
    """A pool's setting for every dimension, from one number or one for each."""
    if isinstance(value, int):
        return (value,) * dims
    assert isinstance(value, Sequence)
    return tuple(value) if len(value) > 1 else tuple(value) * dims


def _register(name: str, pool: Callable[..., Tensor], dims: int) -> None:
    @rule_of(name, samples=_windows(dims), kind=Kind.LINEAR_MAP, pools=True, adds_up=True)
    def average_pool(
        input: Moments,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Moments:
        """Var = sum of the window's variances / n**2, n as the window counts.

        The authors' released code divides by the height and width of the whole input.

        Assumes: independent elements; exact then.

        Source: Loquercio et al. 2020, Eq. 5.
        """
        stride = stride if stride else kernel_size
        return _pooled(
            pool,
            dims,
            input,
            kernel_size,
            stride,
            padding,
            ceil_mode,
            count_include_pad,
            divisor=divisor_override,
        )


def _avg_pool1d(
    input: Tensor,
    kernel: object,
    stride: object,
    padding: object,
    ceil_mode: bool,
    include_pad: bool,
    divisor: int | None = None,
) -> Tensor:
    """The one-dimensional pool as a two-dimensional one, which can take a divisor."""
    (k,), (s,), (p,) = (per_dim(value, 1) for value in (kernel, stride, padding))
    flat = input.unsqueeze(-2)
    return F.avg_pool2d(flat, (1, k), (1, s), (0, p), ceil_mode, include_pad, divisor).squeeze(-2)


_register("avg_pool1d", _avg_pool1d, 1)
_register("avg_pool2d", F.avg_pool2d, 2)
_register("avg_pool3d", F.avg_pool3d, 3)


def _targets(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = _image(draw, dims)
        yield Sample(image, 1)
        yield Sample(image, (3, 4, 2)[:dims])
        if dims > 1:
            yield Sample(image, (None, *(4, 2)[: dims - 1]))

    return samples


def adaptive_windows(size: int, parts: int) -> list[tuple[int, int]]:
    """Start and end of each window of an adaptive pool (torch's rounding)."""
    return [(i * size // parts, -(-((i + 1) * size) // parts)) for i in range(parts)]


def output_sizes(output_size: object, size: Sequence[int]) -> tuple[int, ...]:
    """The sizes of an adaptive pool's output; `None` keeps the input's."""
    if isinstance(output_size, int):
        return (output_size,) * len(size)
    assert isinstance(output_size, Sequence)
    wanted = tuple(output_size) if len(output_size) > 1 else tuple(output_size) * len(size)
    return tuple(n if out is None else out for out, n in zip(wanted, size, strict=True))


def _register_adaptive(name: str, pool: Callable[..., Tensor], dims: int) -> None:
    @rule_of(name, samples=_targets(dims), kind=Kind.LINEAR_MAP, pools=True, adds_up=True)
    def adaptive_average_pool(input: Moments, output_size: int | Sequence[int | None]) -> Moments:
        """Var = sum of the window's variances / n**2; windows differ in size.

        Assumes: independent elements; exact then.

        Source: Loquercio et al. 2020, Eq. 5.
        """
        size = input.mean.shape[-dims:]
        sizes = output_sizes(output_size, size)
        if all(parts == 1 for parts in sizes):
            return _mean_of_all(input, tuple(range(-dims, 0)))
        var = pool(input.var, output_size)
        for axis, (n, parts) in enumerate(zip(size, sizes, strict=True)):
            lengths = [end - start for start, end in adaptive_windows(n, parts)]
            shape = (-1,) + (1,) * (dims - 1 - axis)
            var = var / torch.tensor(lengths, dtype=var.dtype, device=var.device).reshape(shape)
        return Moments(pool(input.mean, output_size), var)


def _mean_of_all(input: Moments, axes: tuple[int, ...]) -> Moments:
    """One window: `vmap` knows no adaptive pool of images whose channels are last."""
    count = math.prod(input.mean.shape[axis] for axis in axes)
    var = input.var.mean(axes, keepdim=True) / count
    return Moments(input.mean.mean(axes, keepdim=True), var)


_register_adaptive("adaptive_avg_pool1d", F.adaptive_avg_pool1d, 1)
_register_adaptive("adaptive_avg_pool2d", F.adaptive_avg_pool2d, 2)
_register_adaptive("adaptive_avg_pool3d", F.adaptive_avg_pool3d, 3)
