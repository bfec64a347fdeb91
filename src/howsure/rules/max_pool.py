"""Max pools: Clark's maximum over the window, one axis after the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.concrete import is_traced
from howsure.errors import NoRuleError
from howsure.families import composite
from howsure.gaussian import Gaussian
from howsure.registry import APPROXIMATE, Target, spellings
from howsure.responses import Probed
from howsure.rules.average_pool import adaptive_windows, output_sizes, per_dim
from howsure.rules.max_pool_in_slabs import pooled
from howsure.rules.windows import Window, taps
from howsure.samples import Draw, Sample, Samples


def _windows(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = draw.moments(2, 2, *(7, 6, 5)[:dims], std=0.5)
        yield Sample(image, 2)
        yield Sample(image, 3, 2, 1)
        yield Sample(image, 2, 2, 0, 2, True)
        yield Sample(image, kernel_size=3, stride=2, ceil_mode=True)

    return samples


def _max_along(
    x: Tensor, axis: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Tensor:
    """The maximum over windows along one axis, of strided slices."""
    size = x.shape[axis]
    span = dilation * (kernel - 1) + 1
    steps = size + 2 * padding - span
    count = (-(-steps // stride) if ceil_mode else steps // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    after = max((count - 1) * stride + span - size - padding, 0)
    if padding or after:
        # Far below any activation, but finite: -inf - (-inf) is not a number.
        lowest = torch.finfo(x.dtype).min / 4
        x = F.pad(x, [0, 0] * (-axis - 1) + [padding, after], value=lowest)
    return functools.reduce(torch.maximum, taps(x, axis, Window(kernel, stride, dilation)))


def _register(name: str, dims: int) -> None:
    @composite(
        *spellings(name),
        name=name,
        samples=_windows(dims),
        fidelity=APPROXIMATE,
        error=0.2,
        in_one_go=functools.partial(pooled, dims=dims),
    )
    def max_pool(
        input: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        """Clark's `maximum` over the window's elements, along one axis after the other.

        Assumes: independent elements, and that the maximum of two is Gaussian again. The std is
        up to 17 % too small for nine equal means, and right where one element leads.

        Source: Clark 1961; Loquercio et al. 2020, section III-A.
        """
        if return_indices:
            raise NoRuleError("The indices of a max pool are not Gaussian; pool without them.")
        settings = [
            per_dim(v, dims) for v in (kernel_size, stride or kernel_size, padding, dilation)
        ]
        # Signs of probes go by shapes: with another one, a trace would draw others than eager.
        if is_traced() and input.dim() > dims and not _has_probes(input):
            return _pooled_densely(input, list(zip(*settings, strict=True)), ceil_mode)
        for axis in range(-dims, 0):
            kernel, step, pad, dilate = (setting[axis] for setting in settings)
            input = _max_along(input, axis, kernel, step, pad, dilate, ceil_mode)
        return input


def _has_probes(x: Tensor) -> bool:
    moments = x.read() if isinstance(x, Gaussian) else None
    return isinstance(moments, Probed) and len(moments.probes) > 0


def _pooled_densely(
    x: Tensor,  # (..., channels, *size)
    settings: Sequence[tuple[int, int, int, int]],  # kernel, stride, padding, dilation of each axis
    ceil_mode: bool,
) -> Tensor:
    """The same for compilers: with channels last, the slices that meet lie dense in memory."""
    dims = len(settings)
    lead = x.shape[: -dims - 1]
    # Five axes: torch's compiler takes four for an image, and puts the second one last.
    front = (*lead, *(1,) * (2 - len(lead)))
    x = x.movedim(-dims - 1, -1)
    for axis, windows in enumerate(settings, start=len(lead)):
        before, after = x.shape[len(lead) : axis], x.shape[axis + 1 :]
        x = x.reshape(*front, math.prod(before), x.shape[axis], math.prod(after))
        x = _max_along(x, -2, *windows, ceil_mode)
        x = x.reshape(*lead, *before, x.shape[-2], *after)
    return x.movedim(-1, -dims - 1)


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
    )
    def adaptive_max_pool(
        input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False
    ) -> Tensor:
        """`amax` of each window.

        Assumes: independent elements; windows that overlap are correlated.

        Source: `amax`.
        """
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
