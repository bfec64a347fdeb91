"""Max pools: Clark's maximum over the window, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import starmap

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite
from howsure.moments.rule import APPROXIMATE, Draw, Sample, Samples, Target, rule_of
from howsure.moments.rules.average_pool import adaptive_windows, output_sizes, per_dim
from howsure.moments.rules.closed_forms import larger
from howsure.moments.rules.max_pool_in_slabs import Window, padded, pooled_in_slabs, taps
from howsure.moments.value import Moments
from howsure.trees import is_tracing


def _windows(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = draw.moments(2, 1 if dims == 3 else 2, *(7, 6, 5)[:dims], std=0.5)
        yield Sample(image, 2)
        yield Sample(image, 3, 2, 1)
        yield Sample(image, 2, 2, 0, 2, True)
        yield Sample(image, kernel_size=3, stride=2, ceil_mode=True)

    return samples


def _register(name: str, dims: int) -> None:
    @rule_of(name, fidelity=APPROXIMATE, samples=_windows(dims), error=0.2, pools=True)
    def max_pool(
        input: Moments,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Moments:
        """Clark's `maximum` over the window's elements, along one axis after the other.

        Assumes: independent elements, and that the maximum of two is Gaussian again. The std is
        up to 17 % too small for nine equal means, and right where one element leads.

        Source: Clark 1961; Loquercio et al. 2020, section III-A.
        """
        if return_indices:
            raise NoRuleError("The indices of a max pool are not Gaussian; pool without them.")
        sizes = [per_dim(value, dims) for value in (kernel_size, stride or kernel_size, dilation)]
        windows = [Window(*settings) for settings in zip(*sizes, strict=True)]
        pads = per_dim(padding, dims)
        found = None if ceil_mode else pooled_in_slabs(input, windows, pads)
        return _pooled(input, windows, pads, ceil_mode) if found is None else found


def _pooled(x: Moments, windows: list[Window], pads: Sequence[int], ceil_mode: bool) -> Moments:
    """The maximum over whole images, for traces and derivatives."""
    along_axis = [
        partial(_max_along, window=window, padding=pad, ceil_mode=ceil_mode)
        for window, pad in zip(windows, pads, strict=True)
    ]
    if is_tracing() and x.mean.dim() > len(windows):
        return _pooled_densely(x, along_axis)
    for axis, largest in enumerate(along_axis, start=-len(windows)):
        x = largest(x, axis)
    return x


def _max_along(x: Moments, axis: int, window: Window, padding: int, ceil_mode: bool) -> Moments:
    """The maximum over windows along one axis, of strided slices."""
    size = x.mean.shape[axis]
    steps = size + 2 * padding - window.span
    count = (-(-steps // window.stride) if ceil_mode else steps // window.stride) + 1
    if ceil_mode and (count - 1) * window.stride >= size + padding:
        count -= 1
    after = max((count - 1) * window.stride + window.span - size - padding, 0)
    x = padded(x, [0, 0] * (-axis - 1) + [padding, after])
    pairs = zip(taps(x.mean, axis, window), taps(x.var, axis, window), strict=True)
    return reduce(larger, starmap(Moments, pairs))


def _pooled_densely(
    x: Moments,  # (..., channels, *size)
    along_axis: Sequence[Callable[[Moments, int], Moments]],
) -> Moments:
    """The same for compilers: with channels last, the slices that meet lie dense in memory."""
    dims = len(along_axis)
    lead = x.mean.shape[: -dims - 1]
    # Five axes: torch's compiler takes four for an image, and puts the second one last.
    front = (*lead, *(1,) * (2 - len(lead)))
    x = _each(torch.movedim, x, -dims - 1, -1)
    for axis, largest in enumerate(along_axis, start=len(lead)):
        shape = x.mean.shape
        before, after = shape[len(lead) : axis], shape[axis + 1 :]
        rows = (*front, math.prod(before), shape[axis], math.prod(after))
        x = largest(_each(torch.reshape, x, rows), -2)
        x = _each(torch.reshape, x, (*lead, *before, x.mean.shape[-2], *after))
    return _each(torch.movedim, x, -1, -dims - 1)


def _each(change: Callable[..., Tensor], x: Moments, *args: object) -> Moments:
    """The same change of shape for mean and variance."""
    return Moments(change(x.mean, *args), change(x.var, *args))


for _dims in (1, 2, 3):
    _register(f"max_pool{_dims}d", _dims)


def _targets(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = draw.moments(2, 2, *(4, 6, 4)[:dims], std=0.5)
        yield Sample(image, 1)
        yield Sample(image, (2, 4, 3)[:dims])

    return samples


def _register_adaptive(pool: Target, dims: int) -> None:
    @composite(
        pool,
        name=f"adaptive_max_pool{dims}d",
        samples=_targets(dims),
        fidelity=APPROXIMATE,
        error=0.2,
        pools=True,
    )
    def adaptive_max_pool(
        input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False
    ) -> Tensor:
        """As `amax` of each window; windows that overlap are correlated."""
        if return_indices:
            raise NoRuleError("The indices of a max pool are not Gaussian; pool without them.")
        sizes = output_sizes(output_size, input.shape[-dims:])
        if all(parts == 1 for parts in sizes):
            return torch.amax(input, tuple(range(-dims, 0)), keepdim=True)
        for axis, parts in zip(range(-dims, 0), sizes, strict=True):
            windows = adaptive_windows(input.shape[axis], parts)
            columns = [
                torch.amax(input.narrow(axis, start, end - start), axis, keepdim=True)
                for start, end in windows
            ]
            input = torch.cat(columns, axis)
        return input


# `torch.adaptive_max_pool1d` and the aten overloads return indices too.
for _dims, _pool in enumerate(
    (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d), start=1
):
    _register_adaptive(_pool, _dims)
