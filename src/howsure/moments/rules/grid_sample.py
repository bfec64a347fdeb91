"""Sampling an image at given positions: squared interpolation weights for the variance."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.rule import EXACT, Draw, Kind, Sample, rule
from howsure.moments.value import Moments

# Along one axis: which elements enter, and with which weights, for every sampled position.
Taps = list[tuple[Tensor, Tensor]]


def _unnormalised(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """Positions in [-1, 1] as element numbers."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


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


def _linear_taps(x: Tensor) -> Taps:
    first = x.floor()
    return [(first, 1 - (x - first)), (first + 1, x - first)]


def _cubic_taps(x: Tensor) -> Taps:
    """Four neighbours with the weights of cubic convolution, a = -3/4 as in torch."""
    first = x.floor()
    t, a = x - first, -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = far(t + 1), near(t), near(1 - t), far(2 - t)
    return [(first + offset - 1, weight) for offset, weight in enumerate(weights)]


def _squared(taps: Taps, size: int) -> Taps:
    """Valid indices with squared weights; taps that fall on one element are added before.

    The sum over pairs (i, j) on the same element of w_i w_j is the square of the element's weight.
    """
    valid = [(i, torch.where((i >= 0) & (i < size), w, torch.zeros_like(w))) for i, w in taps]
    return [
        (
            index.clamp(0, size - 1).long(),
            weight * torch.stack([w * (other == index) for other, w in valid]).sum(0),
        )
        for index, weight in valid
    ]


def _axis_taps(x: Tensor, size: int, mode: str, padding_mode: str, align_corners: bool) -> Taps:
    x = _unnormalised(x, size, align_corners)
    if mode == "bicubic":
        taps = _cubic_taps(x)
        moved = [(_inside(i, size, padding_mode, align_corners), w) for i, w in taps]
        return _squared(moved, size)
    return _squared(_linear_taps(_inside(x, size, padding_mode, align_corners)), size)


def _interpolated(
    var: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: bool
) -> Tensor:
    """Variances at the grid's positions: products of squared weights over the axes."""
    batch, channels, *sizes = var.shape
    # The grid's last axis counts x, y, z: the image's axes backwards.
    axes = [
        _axis_taps(
            grid[..., len(sizes) - 1 - axis].to(var.dtype), size, mode, padding_mode, align_corners
        )
        for axis, size in enumerate(sizes)
    ]
    flat = var.flatten(2)
    total = torch.zeros(batch, channels, *grid.shape[1:-1], dtype=var.dtype, device=var.device)
    for combination in itertools.product(*axes):
        index, weight = combination[0]
        for size, (next_index, next_weight) in zip(sizes[1:], combination[1:], strict=True):
            index, weight = index * size + next_index, weight * next_weight
        chosen = index.flatten(1).unsqueeze(1).expand(-1, channels, -1)
        total = total + flat.gather(2, chosen).reshape(total.shape) * weight.unsqueeze(1)
    return total.clamp(min=0)


def _grids(draw: Draw) -> Iterable[Sample]:
    image, grid = draw.moments(2, 2, 4, 5), 0.8 * draw.constant(2, 3, 3, 2)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield Sample(image, grid, mode, padding, align_corners=padding == "border")
    volume = draw.moments(1, 2, 3, 4, 2)
    yield Sample(volume, 0.8 * draw.constant(1, 2, 3, 2, 3), align_corners=False)


@rule(F.grid_sample, name="grid_sample", fidelity=EXACT, samples=_grids, kind=Kind.LINEAR_MAP)
def grid_sample(
    input: Moments,  # (batch, channels, *size)
    grid: Tensor,  # (batch, *out, dims)
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Moments:
    """Var = squared interpolation weights times var.

    Assumes: independent elements and constant positions; exact then. Neighbouring outputs share
    inputs.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    if isinstance(grid, Moments) or not isinstance(input, Moments):
        raise NoRuleError(
            "The sampling positions are random. Compute the grid from a tensor without noise, or "
            "accept a first-order answer with `fallback='linearise'`."
        )
    options = mode, padding_mode, bool(align_corners)
    mean = F.grid_sample(input.mean, grid, *options)
    if mode == "nearest":
        grid = grid.to(input.var.dtype)
        return Moments(mean, F.grid_sample(input.var, grid, *options))
    return Moments(mean, _interpolated(input.var, grid, *options))


_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@rule(
    torch.grid_sampler,
    torch.ops.aten.grid_sampler.default,
    torch.ops.aten.grid_sampler_2d.default,
    torch.ops.aten.grid_sampler_3d.default,
    name="grid_sampler",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(2, 2, 4, 5), draw.constant(2, 3, 3, 2), 0, 0, False)],
    kind=Kind.LINEAR_MAP,
)
def grid_sampler(
    input: Moments, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Moments:
    """As `grid_sample`, with torch's numbers for the modes."""
    modes = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    return grid_sample(input, grid, *modes, align_corners)


def _maps(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 2, 3), (2, 1, 3, 4), False)
    yield Sample(draw.moments(1, 3, 4), (1, 1, 2, 3, 2), align_corners=True)


@rule(
    F.affine_grid,
    torch.affine_grid_generator,
    torch.ops.aten.affine_grid_generator.default,
    name="affine_grid",
    fidelity=EXACT,
    samples=_maps,
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
