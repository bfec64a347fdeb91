"""Interpolation: the variance goes through the squared interpolation weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import EXACT, Draw, Kind, Sample, rule
from howsure.moments.rules.average_pool import per_dim
from howsure.moments.value import Moments


def _images(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 2, 4, 5)
    yield Sample(image, scale_factor=2)
    yield Sample(image, (7, 3), mode="nearest-exact")
    yield Sample(image, scale_factor=(1.5, 2.0), mode="bilinear")
    yield Sample(image, size=(8, 10), mode="bilinear", align_corners=True)
    yield Sample(image, size=(6, 3), mode="bicubic")
    yield Sample(image, size=(2, 3), mode="bilinear", antialias=True)
    yield Sample(image, size=(2, 3), mode="area")
    yield Sample(draw.moments(2, 2, 5), scale_factor=2, mode="linear")
    yield Sample(draw.moments(1, 2, 2, 3, 2), scale_factor=2, mode="trilinear")


@rule(
    F.interpolate,
    name="interpolate",
    fidelity=EXACT,
    samples=_images,
    kind=Kind.LINEAR_MAP,
)
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

    Assumes: independent elements; exact then. Neighbouring outputs share inputs.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    options: dict[str, Any] = {"mode": mode, "align_corners": align_corners}
    options |= {"recompute_scale_factor": recompute_scale_factor, "antialias": antialias}
    mean = F.interpolate(input.mean, size, scale_factor, **options)
    if mode.startswith("nearest"):
        return Moments(mean, F.interpolate(input.var, size, scale_factor, **options))
    dims = input.mean.dim() - 2
    var = input.var
    for axis in range(dims):
        weights = _weights(input, axis, dims, size, scale_factor, options)
        var = torch.movedim(torch.movedim(var, axis + 2, -1) @ weights.square(), -1, axis + 2)
    return Moments(mean, var)


def _weights(
    input: Moments,
    axis: int,
    dims: int,
    size: object,
    scale_factor: object,
    options: dict[str, Any],
) -> Tensor:  # (in, out)
    """The interpolation matrix of one axis: what interpolation makes of unit vectors."""
    length = input.mean.shape[axis + 2]
    eye = torch.eye(length, dtype=input.var.dtype, device=input.var.device)
    # The other axes have two equal entries: with one, torch 2.13 antialiases along the wrong axis.
    eye = eye.reshape(1, length, *(length if i == axis else 1 for i in range(dims)))
    eye = eye.repeat(1, 1, *(1 if i == axis else 2 for i in range(dims)))
    only = _axis_only(axis, dims, size, 2), _axis_only(axis, dims, scale_factor, 1.0)
    weights = F.interpolate(eye, *only, **options)[0]
    for other in reversed(range(dims)):
        weights = weights if other == axis else weights.select(other + 1, 0)
    return weights


def _axis_only(axis: int, dims: int, value: object, neutral: object) -> Any:
    """The setting of one axis, with the other axes left as they are."""
    if value is None:
        return None
    values = value if isinstance(value, Sequence) else (value,) * dims
    values = tuple(values) if len(values) > 1 else per_dim(values, dims)
    return tuple(values[i] if i == axis else neutral for i in range(dims))
