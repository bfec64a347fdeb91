"""Batch norm while training through moment propagation: statistics of the batch, noise included."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import APPROXIMATE, Draw, Rule, Sample
from howsure.moments.value import Moments


def _normalised(
    input: Moments,  # (batch, channels, *)
    running_mean: Tensor | None,  # (channels,)
    running_var: Tensor | None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """mean = w (mean - M) / sqrt(S + eps) + b, var = w**2 var / (S + eps), S = Var[mean] + E[var].

    M and S are the mean and the variance of a channel over the batch; S is the total variance of
    what the layer would see, by the law of total variance. Gradients pass through both. Running
    statistics are kept as in torch. Without noise it is torch's batch norm in train mode.

    Assumes: the noise of one element does not move M and S, which averages over the batch justify.

    Source: Ioffe & Szegedy 2015, Algorithm 1; the noise term is ours.
    """
    axes = [axis for axis in range(input.mean.dim()) if axis != 1]
    count = input.mean.numel() // input.mean.shape[1]
    if count < 2:
        raise ValueError(
            "Batch norm needs more than one value per channel to train; use larger batches, or "
            '`batch_norm="running"`.'
        )
    spread, centre = torch.var_mean(input.mean, axes, correction=0)
    noise = input.var.mean(axes)
    _keep(running_mean, centre, momentum)
    _keep(running_var, spread * count / (count - 1) + noise, momentum)
    shape = (-1, *[1] * (input.mean.dim() - 2))
    scale = torch.rsqrt(spread + noise + eps)
    if weight is not None:
        scale = scale * weight
    mean = (input.mean - centre.reshape(shape)) * scale.reshape(shape)
    if bias is not None:
        mean = mean + bias.reshape(shape)
    return Moments(mean, input.var * scale.square().reshape(shape))


@torch.no_grad()
def _keep(running: Tensor | None, found: Tensor, momentum: float) -> None:
    """running = (1 - momentum) running + momentum found.

    A layer with `momentum=None` hands over 0 outside train mode; it gets torch's default.
    """
    if running is not None:
        running.lerp_(found.to(running.dtype), momentum or 0.1)


def _image(draw: Draw) -> list[Sample]:
    return [Sample(draw.moments(4, 3, 2, 2), draw.constant(3), draw.positive(3))]


batch_statistics = Rule(
    "batch_norm (batch statistics)", _normalised, (F.batch_norm,), APPROXIMATE, _image
)
