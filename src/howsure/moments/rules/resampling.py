"""Pools, resizing and sampling at positions: images on another grid.

What is linear takes the variance through squared weights; a maximum takes Clark's formula.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite, per_dim, respell, separable, separable_map
from howsure.moments.rule import APPROXIMATE, Kind, Sample, Target, constant, normal, rule, sample
from howsure.moments.rules.closed_forms import larger
from howsure.moments.rules.linear import mean as mean_rule
from howsure.moments.value import Moments
from howsure.trees import is_tracing

_aten = torch.ops.aten


# Average pools: of each window, the sum of the variances over the square of its size. The authors'
# released code divides by the height and width of the whole input.
_POOL = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
_ONE_ELEMENT = {"kernel_size": 1, "stride": 1, "padding": 0}


def _image(dims: int) -> Any:
    """Two rows with channels; volumes have one, since channels are pooled as rows are."""
    return normal(2, 1 if dims == 3 else 3, *(7, 6, 5)[:dims])


def _register_adaptive_average(name: str, pool: Target, dims: int) -> None:
    sizes = [1, (3, 4, 2)[:dims]] + ([(None, *(4, 2)[: dims - 1])] if dims > 1 else [])
    samples = [Sample(_image(dims), size) for size in sizes]

    @rule(name, samples=samples, kind=Kind.LINEAR_MAP, adds_up=True)
    def adaptive_average_pool(input: Moments, output_size: int | Sequence[int | None]) -> Moments:
        """Var = sum of the window's variances / n**2; windows differ in size.

        Assumes: independent elements; exact then.

        Source: Loquercio et al. 2020, Eq. 5.
        """
        if all(size == 1 for size in per_dim(output_size, dims)):
            # `vmap` knows no adaptive pool of images whose channels are last.
            return mean_rule(input, tuple(range(-dims, 0)), True)
        return separable(pool, input, dims, {"output_size": 2}, output_size=output_size)


for _dims in (1, 2, 3):
    separable_map(
        getattr(F, f"avg_pool{_dims}d"),
        f"avg_pool{_dims}d",
        dims=_dims,
        samples=[
            Sample(_image(_dims), 2),
            Sample(_image(_dims), 3, 2, 1),
            Sample(_image(_dims), 3, 2, 1, True, False),
            Sample(_image(_dims), kernel_size=2, stride=3, ceil_mode=True),
        ],
        parameters=_POOL.split(),
        neutral=_ONE_ELEMENT,
        adds_up=True,
    )
    _adaptive = f"adaptive_avg_pool{_dims}d"
    _register_adaptive_average(_adaptive, getattr(F, _adaptive), _dims)


# Resizing.
_IMAGE = normal(2, 2, 4, 5)
_RESIZED = [
    Sample(_IMAGE, scale_factor=2),
    Sample(_IMAGE, (7, 3), mode="nearest-exact"),
    Sample(_IMAGE, scale_factor=(1.5, 2.0), mode="bilinear"),
    Sample(_IMAGE, size=(8, 10), mode="bilinear", align_corners=True),
    Sample(_IMAGE, size=(6, 3), mode="bicubic"),
    Sample(_IMAGE, size=(2, 3), mode="bilinear", antialias=True),
    Sample(_IMAGE, size=(2, 3), mode="area"),
    Sample(normal(2, 2, 5), scale_factor=2, mode="linear"),
    Sample(normal(1, 2, 2, 3, 2), scale_factor=2, mode="trilinear"),
]


@rule(F.interpolate, samples=_RESIZED, kind=Kind.LINEAR_MAP)
def interpolate(
    input: Moments,  # (batch, channels, *size)
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Moments:
    """Var = A**2 var: the squared weights of the separable interpolation matrix A.

    Interpolating the variance itself, as the authors' code does, makes the std 1.5 times too
    large.

    Assumes: independent elements; exact then. Neighboring outputs share inputs.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    settings: dict[str, Any] = {"size": size, "scale_factor": scale_factor, "mode": mode}
    settings |= {"align_corners": align_corners, "antialias": antialias}
    settings["recompute_scale_factor"] = recompute_scale_factor
    if mode.startswith("nearest"):
        return Moments(*(F.interpolate(x, **settings) for x in (input.mean, input.var)))
    neutral = {"size": 2, "scale_factor": 1.0}
    return separable(F.interpolate, input, input.mean.dim() - 2, neutral, **settings)


def _resize(mode: str, antialias: bool) -> Callable[..., Tensor]:
    """`interpolate` as exported programs call it: to a size, or by factors."""

    def resize(input: Tensor, output_size: list[int] | None, *settings: Any) -> Tensor:
        """As `interpolate`."""
        corners, *factors = (None, *settings) if mode.startswith("nearest") else settings
        if factors and isinstance(factors[0], (list, tuple)):
            factors = factors[0]
        options: dict[str, Any] = {"align_corners": corners, "antialias": antialias}
        if factors and factors[0] is not None:
            return F.interpolate(input, None, tuple(factors), mode, **options)
        return F.interpolate(input, output_size, None, mode, **options)

    return resize


for _name, _mode, _dims in (
    ("upsample_nearest1d", "nearest", 1),
    ("upsample_nearest2d", "nearest", 2),
    ("upsample_nearest3d", "nearest", 3),
    ("_upsample_nearest_exact1d", "nearest-exact", 1),
    ("_upsample_nearest_exact2d", "nearest-exact", 2),
    ("_upsample_nearest_exact3d", "nearest-exact", 3),
    ("upsample_linear1d", "linear", 1),
    ("upsample_bilinear2d", "bilinear", 2),
    ("upsample_bicubic2d", "bicubic", 2),
    ("upsample_trilinear3d", "trilinear", 3),
    ("_upsample_bilinear2d_aa", "bilinear", 2),
    ("_upsample_bicubic2d_aa", "bicubic", 2),
):
    _packet, _corners = getattr(_aten, _name), () if _mode.startswith("nearest") else (False,)
    _samples = sample((2, 3, 4, 3, 2)[: 2 + _dims], [6, 5, 3][:_dims], *_corners)
    _definition = _resize(_mode, _name.endswith("_aa"))
    composite(_packet.default, _packet.vec, name=_name, samples=_samples)(_definition)


# Sampling at positions. Along one axis: which elements enter, with which weights, at each position.
Taps = list[tuple[Tensor, Tensor]]


def _inside(x: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Positions moved inside by clipping or reflection; `zeros` leaves them outside."""
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        away = (x - low).abs()
        folded, turns = torch.fmod(away, span), torch.floor(away / span)
        x = torch.where(turns % 2 == 0, folded, span - folded) + low
    return x if padding_mode == "zeros" else x.clamp(0, size - 1)


def _cubic_taps(x: Tensor) -> Taps:
    """Four neighbors with the weights of cubic convolution, a = -3/4 as in torch."""
    first = x.floor()
    t, a = x - first, -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = far(t + 1), near(t), near(1 - t), far(2 - t)
    return [(first + offset - 1, weight) for offset, weight in enumerate(weights)]


def _squared_taps(x: Tensor, size: int, mode: str, padding_mode: str, align_corners: bool) -> Taps:
    """Valid indices with squared weights, for positions in [-1, 1] along one axis.

    Taps that fall on one element are added before: the sum over pairs (i, j) on the same element of
    w_i w_j is the square of the element's weight.
    """
    x = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if mode == "bicubic":
        moved = [(_inside(i, size, padding_mode, align_corners), w) for i, w in _cubic_taps(x)]
    else:
        x = _inside(x, size, padding_mode, align_corners)
        moved = [(x.floor(), 1 - (x - x.floor())), (x.floor() + 1, x - x.floor())]
    valid = [(i, torch.where((i >= 0) & (i < size), w, torch.zeros_like(w))) for i, w in moved]
    return [
        (
            index.clamp(0, size - 1).long(),
            weight * torch.stack([w * (other == index) for other, w in valid]).sum(0),
        )
        for index, weight in valid
    ]


_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
_GRID = constant(2, 3, 3, 2, scale=0.8)
_GRIDS = [
    Sample(_IMAGE, _GRID, mode, padding, align_corners=padding == "border")
    for mode, padding in itertools.product(_MODES, _PADDINGS)
]
_GRIDS += sample((1, 2, 3, 4, 2), constant(1, 2, 3, 2, 3, scale=0.8), align_corners=False)


@rule(F.grid_sample, samples=_GRIDS, kind=Kind.LINEAR_MAP)
def grid_sample(
    input: Moments,  # (batch, channels, *size)
    grid: Tensor,  # (batch, *out, dims)
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Moments:
    """Var = squared interpolation weights times var.

    Assumes: independent elements and constant positions; exact then. Neighboring outputs share
    inputs.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    if isinstance(grid, Moments) or not isinstance(input, Moments):
        raise NoRuleError(
            "The sampling positions are random. Compute the grid from a tensor without noise, or "
            "accept a first-order answer with `fallback='linearize'`."
        )
    options = mode, padding_mode, bool(align_corners)
    mean, grid = F.grid_sample(input.mean, grid, *options), grid.to(input.var.dtype)
    if mode == "nearest":
        return Moments(mean, F.grid_sample(input.var, grid, *options))
    sizes = input.var.shape[2:]
    # The grid's last axis counts x, y, z: the image's axes backwards.
    along = [
        _squared_taps(x, n, *options) for x, n in zip(grid.unbind(-1)[::-1], sizes, strict=True)
    ]
    flat, var = input.var.flatten(2), torch.zeros_like(mean, dtype=input.var.dtype)
    for combination in itertools.product(*along):
        index, weight = combination[0]
        for size, (next_index, next_weight) in zip(sizes[1:], combination[1:], strict=True):
            index, weight = index * size + next_index, weight * next_weight
        chosen = index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
        var = var + flat.gather(2, chosen).reshape(var.shape) * weight.unsqueeze(1)
    return Moments(mean, var.clamp(min=0))


respell(
    grid_sample,
    torch.grid_sampler,
    _aten.grid_sampler.default,
    _aten.grid_sampler_2d.default,
    _aten.grid_sampler_3d.default,
    name="grid_sampler",
    samples=[Sample(normal(2, 2, 4, 5), constant(2, 3, 3, 2), 0, 0, False)],
    arguments=lambda input, grid, interpolation_mode, padding_mode, align_corners: (
        input,
        grid,
        _MODES[interpolation_mode],
        _PADDINGS[padding_mode],
        align_corners,
    ),
)


@rule(
    F.affine_grid,
    torch.affine_grid_generator,
    _aten.affine_grid_generator.default,
    samples=[
        Sample(normal(2, 2, 3), (2, 1, 3, 4), False),
        Sample(normal(1, 3, 4), (1, 1, 2, 3, 2), align_corners=True),
    ],
    kind=Kind.LINEAR_MAP,
)
def affine_grid(
    theta: Moments,  # (batch, dims, dims + 1)
    size: Sequence[int],
    align_corners: bool | None = None,
) -> Moments:
    """Var = squared base grid times var: the positions are linear in theta.

    Assumes: independent elements; exact then.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    mean = F.affine_grid(theta.mean, list(size), bool(align_corners))
    dims = theta.mean.shape[1]
    identity = torch.eye(dims, dims + 1, dtype=theta.var.dtype, device=theta.var.device)
    base = F.affine_grid(identity.unsqueeze(0), [1, *size[1:]], bool(align_corners))
    base = F.pad(base, (0, 1), value=1.0).squeeze(0)
    return Moments(mean, torch.einsum("...k,brk->b...r", base.square(), theta.var))


# Max pools: Clark's maximum over the window, one axis after the other.
def _max_windows(dims: int) -> list[Sample]:
    image = normal(2, 1 if dims == 3 else 2, *(7, 6, 5)[:dims], std=0.5)
    return [
        Sample(image, 2),
        Sample(image, 3, 2, 1),
        Sample(image, 2, 2, 0, 2, True),
        Sample(image, kernel_size=3, stride=2, ceil_mode=True),
    ]


_INDICES = "The indices of a max pool are not Gaussian; pool without them."


def _register_max(name: str, dims: int) -> None:
    @rule(name, fidelity=APPROXIMATE, samples=_max_windows(dims), error=0.2)
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
            raise NoRuleError(_INDICES)
        settings = (kernel_size, stride or kernel_size, padding, dilation)
        windows = zip(*(per_dim(setting, dims) for setting in settings), strict=True)
        along_axis = [partial(_max_along, window=w, ceil_mode=ceil_mode) for w in windows]
        if is_tracing() and input.mean.dim() > dims:
            return _pool_densely(input, along_axis)
        for axis, largest in enumerate(along_axis, start=-dims):
            input = largest(input, axis)
        return input


def _max_along(
    x: Moments,
    axis: int,
    window: tuple[int, int, int, int],  # kernel, stride, padding and dilation
    ceil_mode: bool,
) -> Moments:
    """The maximum over windows along one axis: of all first elements, all second ones, ..."""
    kernel, stride, padding, dilation = window
    size, span = x.mean.shape[axis], dilation * (kernel - 1) + 1
    steps = size + 2 * padding - span
    count = (-(-steps // stride) if ceil_mode else steps // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    after = max((count - 1) * stride + span - size - padding, 0)
    if padding or after:
        # Far below any activation, but finite: -inf - (-inf) is not a number.
        lowest = torch.finfo(x.mean.dtype).min / 4
        border = [0, 0] * (-axis - 1) + [padding, after]
        x = Moments(F.pad(x.mean, border, value=lowest), F.pad(x.var, border))

    def elements(tensor: Tensor, offset: int) -> Tensor:
        return tensor.narrow(axis, offset, (count - 1) * stride + 1)[every_stride]

    every_stride = (..., slice(None, None, stride), *(slice(None),) * (-axis - 1))
    offsets = range(0, span, dilation)
    return reduce(larger, [Moments(elements(x.mean, i), elements(x.var, i)) for i in offsets])


def _pool_densely(
    x: Moments,  # (..., channels, *size)
    along_axis: Sequence[Callable[[Moments, int], Moments]],
) -> Moments:
    """The same for compilers: with channels last, the slices that meet lie dense in memory.

    20 compiled samples of DroNet take 1.5 times as long without.
    """

    def change(op: Target, *args: Any) -> Moments:
        return Moments(op(x.mean, *args), op(x.var, *args))

    dims = len(along_axis)
    lead = x.mean.shape[: -dims - 1]
    # Five axes: torch's compiler takes four for an image, and puts the second one last.
    front = (*lead, *(1,) * (2 - len(lead)))
    x = change(torch.movedim, -dims - 1, -1)
    for axis, largest in enumerate(along_axis, start=len(lead)):
        shape = x.mean.shape
        before, after = shape[len(lead) : axis], shape[axis + 1 :]
        x = change(torch.reshape, (*front, math.prod(before), shape[axis], math.prod(after)))
        x = largest(x, -2)
        x = change(torch.reshape, (*lead, *before, x.mean.shape[-2], *after))
    return change(torch.movedim, -1, -dims - 1)


def _register_adaptive_max(pool: Target, dims: int) -> None:
    image = normal(2, 2, *(4, 6, 4)[:dims], std=0.5)

    @composite(
        pool,
        samples=[Sample(image, 1), Sample(image, (2, 4, 3)[:dims])],
        fidelity=APPROXIMATE,
        error=0.2,
    )
    def adaptive_max_pool(
        input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False
    ) -> Tensor:
        """As `amax` of each window; windows that overlap are correlated."""
        if return_indices:
            raise NoRuleError(_INDICES)
        whole = zip(per_dim(output_size, dims), input.shape[-dims:], strict=True)
        sizes = [n if parts is None else parts for parts, n in whole]
        if all(parts == 1 for parts in sizes):
            return torch.amax(input, tuple(range(-dims, 0)), keepdim=True)
        for axis, parts in zip(range(-dims, 0), sizes, strict=True):
            size = input.shape[axis]
            # Start and end of each window, by torch's rounding.
            ends = [(i * size // parts, -(-((i + 1) * size) // parts)) for i in range(parts)]
            columns = [
                torch.amax(input.narrow(axis, start, end - start), axis, keepdim=True)
                for start, end in ends
            ]
            input = torch.cat(columns, axis)
        return input


# `torch.adaptive_max_pool1d` and the aten overloads return indices too.
for _dims in (1, 2, 3):
    _register_max(f"max_pool{_dims}d", _dims)
    _register_adaptive_max(getattr(F, f"adaptive_max_pool{_dims}d"), _dims)
