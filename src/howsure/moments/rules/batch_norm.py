"""Batch normalisation with the statistics of training: one scale and one shift per channel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.rule import EXACT, Draw, Kind, Sample, rule
from howsure.moments.value import Moments


def _channels(draw: Draw) -> Iterable[Sample]:
    mean, var = draw.constant(3), draw.positive(3)
    yield Sample(
        draw.moments(2, 3, 4, 4), mean, var, weight=draw.constant(3), bias=draw.constant(3)
    )
    yield Sample(draw.moments(4, 3), mean, var, eps=1e-3)
    yield Sample(draw.moments(2, 3, 5), mean, var, draw.constant(3), None, False, 0.1, 1e-5)


@rule(
    F.batch_norm,
    name="batch_norm",
    fidelity=EXACT,
    samples=_channels,
    kind=Kind.LINEAR_MAP,
    normalises=True,
)
def batch_norm(
    input: Moments,  # (batch, channels, *)
    running_mean: Tensor | None,  # (channels,)
    running_var: Tensor | None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """var = weight**2 / (running_var + eps) * var: an affine map per channel.

    The authors' released code leaves out 1 / (running_var + eps).

    Assumes: nothing beyond fixed running statistics; exact.

    Source: Loquercio et al. 2020, Eq. 5 (linear layers).
    """
    if training or running_mean is None or running_var is None:
        raise NoRuleError(
            "Batch norm in train mode mixes the statistics of the batch into every element. Call "
            "`model.eval()`; a layer with `track_running_stats=False` needs running statistics."
        )
    dtype = input.var.dtype
    if input.mean.dtype != dtype:  # half precision: torch's own keeps more digits
        settings = (running_mean, running_var, weight, bias, False, momentum, eps)
        mean = F.batch_norm(input.mean, *settings)
        scale, _ = scale_and_shift(running_mean, running_var, weight, bias, eps, dtype)
    else:
        scale, shift = scale_and_shift(running_mean, running_var, weight, bias, eps, dtype)
        mean = (input.mean * _per_channel(scale, input.mean)).add_(_per_channel(shift, input.mean))
    return Moments(mean, input.var * _per_channel(scale.square(), mean))


def scale_and_shift(
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """y = scale x + shift for each channel."""
    scale = torch.rsqrt(running_var.to(dtype) + eps)
    scale = scale if weight is None else scale * weight.to(dtype)
    mean = running_mean.to(dtype)
    return scale, -mean * scale if bias is None else bias.to(dtype).addcmul(mean, scale, value=-1)


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 2))


def _channels_aten(draw: Draw) -> Iterable[Sample]:
    statistics = draw.constant(3), draw.constant(3), draw.constant(3), draw.positive(3)
    yield Sample(draw.moments(2, 3, 4), *statistics, False, 0.1, 1e-5, False)


@rule(
    torch.batch_norm,
    torch.ops.aten.batch_norm.default,
    name="batch_norm (aten order)",
    fidelity=EXACT,
    samples=_channels_aten,
    kind=Kind.LINEAR_MAP,
    normalises=True,
)
def batch_norm_aten(
    input: Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Moments:
    """As `batch_norm`, with the argument order of exported programs."""
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
