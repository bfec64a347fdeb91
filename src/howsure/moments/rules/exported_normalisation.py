"""Normalisation under the names of exported programs, which also return the statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from howsure.moments.rule import APPROXIMATE, EXACT, Draw, Sample, rule
from howsure.moments.rules.normalization import (
    affine,
    batch_norm,
    group_norm,
    layer_norm,
    standardize_over,
)
from howsure.moments.value import Moments

_aten = torch.ops.aten


def _statistics(input: Moments, axes: tuple[int, ...], eps: float) -> tuple[Moments, Moments]:
    """Moments of the mean and of 1 / s over `axes`, which stay with size 1."""
    normal, scale = standardize_over(input, axes, eps)
    mean = input.mean.mean(axes, keepdim=True)
    count = input.mean.numel() // mean.numel()
    spread = (normal.mean.square() * input.var).sum(axes, keepdim=True)
    return (
        Moments(mean, input.var.sum(axes, keepdim=True) / count**2),
        Moments((1 / scale).to(mean.dtype), spread / (count * scale.square()).square()),
    )


def _rows(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.2), [16], draw.constant(16), draw.constant(16), 1e-5)


@rule(
    _aten.native_layer_norm.default,
    torch.native_layer_norm,
    name="native_layer_norm",
    fidelity=APPROXIMATE,
    samples=_rows,
    error=0.1,
)
def native_layer_norm(
    input: Moments,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Moments, Moments, Moments]:
    """As `layer_norm`, with the mean and 1 / s."""
    axes = tuple(range(-len(normalized_shape), 0))
    out = layer_norm(input, normalized_shape, weight, bias, eps)
    return out, *_statistics(input, axes, eps)


def _channels(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 4, 3, 3, std=0.2)
    yield Sample(image, draw.constant(4), draw.constant(4), 2, 4, 9, 2, 1e-5)


@rule(
    _aten.native_group_norm.default,
    torch.native_group_norm,
    name="native_group_norm",
    fidelity=APPROXIMATE,
    samples=_channels,
    error=0.1,
)
def native_group_norm(
    input: Moments,  # (N, C, *)
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Moments, Moments, Moments]:
    """As `group_norm`, with the means and 1 / s."""
    out = group_norm(input, group, weight, bias, eps)
    flat = _reshaped(input, (N, group, -1))
    mean, scale = _statistics(flat, (-1,), eps)
    return out, _reshaped(mean, (N, group)), _reshaped(scale, (N, group))


def _reshaped(moments: Moments, shape: Sequence[int]) -> Moments:
    return Moments(moments.mean.reshape(shape), moments.var.reshape(shape))


def _fixed(draw: Draw) -> Iterable[Sample]:
    statistics = draw.constant(3), draw.constant(3), draw.constant(3), draw.positive(3)
    yield Sample(draw.moments(2, 3, 4), *statistics, 0.1, 1e-5)


@rule(
    _aten._native_batch_norm_legit_no_training.default,
    name="native_batch_norm",
    fidelity=EXACT,
    samples=_fixed,
)
def native_batch_norm(
    input: Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Moments, Tensor, Tensor]:
    """As `batch_norm` in eval mode, with two empty tensors."""
    out = batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    empty = input.mean.new_empty(0)
    return out, empty, empty.clone()


def _own(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(1, 4, 4, 4, std=0.2)
    yield Sample(image, draw.constant(4), draw.constant(4), True, 0.1, 1e-5)


@rule(
    _aten._native_batch_norm_legit.no_stats,
    name="native_batch_norm without statistics",
    fidelity=APPROXIMATE,
    samples=_own,
    error=0.1,
)
def native_batch_norm_no_stats(
    input: Moments,  # (1, batch * channels, *): instance norm, decomposed
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Moments, Moments, Moments]:
    """As `layer_norm` over all axes but the channels', with the means and 1 / s."""
    axes = (0, *range(2, input.mean.dim()))
    normal, _ = standardize_over(input, axes, eps)
    out = affine(normal, weight, bias, input, trailing=input.mean.dim() - 2)
    mean, scale = _statistics(input, axes, eps)
    return out, _reshaped(mean, (-1,)), _reshaped(scale, (-1,))
