"""Normalisation by a statistic of the data itself: layer, group and instance norm.

Each divides by s, where s**2 is an expected square: it contains the variance of the noise, without
which the result would be up to twice too wide. The Jacobian is that of the division, with s at
its expected size: d y_i / d x_j = (delta_ij - share (c + y_i y_j)) / s, where c = 1 if the mean is
subtracted and 0 if not, and share is one over the number of elements that s**2 averages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule, rule_of
from howsure.moments.rules.batch_norm import batch_norm
from howsure.moments.value import Moments

Axes = tuple[int, ...]


def divide(
    centred: Tensor, var: Tensor, scale: Tensor, axes: Axes, share: float, shifted: bool
) -> Moments:
    """Moments of `centred / scale`, both functions of the same Gaussians along `axes`.

    Var_i = sum_j (delta_ij - share (c + y_i y_j))**2 v_j / scale**2, multiplied out.
    """
    y = centred / scale
    own = share * y.square()
    coupled = own * share * (y.square() * var).sum(axes, keepdim=True)
    if shifted:
        own = own + share
        sums = var.sum(axes, keepdim=True) + 2 * y * (y * var).sum(axes, keepdim=True)
        coupled = coupled + share * share * sums
    # The square of a sum, multiplied out: rounding may leave a small negative number.
    total = (var * (1 - 2 * own) + coupled).clamp(min=0)
    return Moments(y, total / scale.square())


def standardise_over(input: Moments, axes: Axes, eps: float) -> tuple[Moments, Tensor]:
    """Moments of (x - mean(x)) / s over `axes`, and s; s**2 is the expected sample variance."""
    mean, var = input.mean.to(input.var.dtype), input.var
    size = count(mean, axes)
    centred = mean - mean.mean(axes, keepdim=True)
    noise = (1 - 1 / size) * var.mean(axes, keepdim=True)
    scale = (centred.square().mean(axes, keepdim=True) + noise + eps).sqrt()
    return divide(centred, var, scale, axes, 1 / size, True), scale


def count(tensor: Tensor, axes: Axes) -> int:
    """How many elements lie along `axes`."""
    return math.prod(tensor.shape[axis] for axis in axes)


def affine(
    normal: Moments, weight: Tensor | None, bias: Tensor | None, like: Moments, trailing: int = 0
) -> Moments:
    """`weight y + bias` in the input's dtype; a weight per channel has `trailing` axes behind."""
    mean, var = normal.mean, normal.var
    ones = (1,) * trailing
    if weight is not None:
        gain = weight.to(var.dtype).reshape(weight.shape + ones)
        mean, var = mean * gain, var * gain.square()
    if bias is not None:
        mean = mean + bias.to(var.dtype).reshape(bias.shape + ones)
    return Moments(mean.to(like.mean.dtype), var)


def last(shape: Sequence[int]) -> Axes:
    """The axes of a normalised shape."""
    return tuple(range(-len(shape), 0))


def _rows(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.3), (16,), draw.constant(16), draw.constant(16))
    yield Sample(draw.moments(2, 3, 4, 6, std=0.5), [4, 6], eps=1e-3)
    yield Sample(draw.moments(2, 32, mean=2.0), (32,), weight=draw.constant(32))


@rule_of(
    "layer_norm",
    first=F.layer_norm,
    fidelity=APPROXIMATE,
    samples=_rows,
    error=0.1,
    normalises=True,
)
def layer_norm(
    input: Moments,  # (*batch, *normalized_shape)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,  # normalized_shape
    bias: Tensor | None = None,  # normalized_shape
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Moments:
    """s**2 = var(m) + (1 - 1/n) mean(v) + eps, E = (m - mean(m)) / s, Var = J**2 v.

    J_ij = (delta_ij - (1 + y_i y_j) / n) / s; then weight and bias.

    Assumes: independent elements, and a sample variance near its expectation: the std is within
    1 % for 32 elements or more, and 7 % too small for 8 with as much noise as signal.

    Source: our own; docs/accuracy.md compares it with the usual rule, which leaves the noise out.
    """
    normal, _ = standardise_over(input, last(normalized_shape), eps)
    return affine(normal, weight, bias, input)


def _channels(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 4, 3, 3, std=0.4)
    yield Sample(image, 2, draw.constant(4), draw.constant(4))
    yield Sample(image, num_groups=1, eps=1e-3)
    yield Sample(draw.moments(2, 24, std=0.4), 2)


@rule_of(
    "group_norm",
    first=F.group_norm,
    fidelity=APPROXIMATE,
    samples=_channels,
    error=0.1,
    normalises=True,
)
def group_norm(
    input: Moments,  # (batch, channels, *)
    num_groups: int,
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Moments:
    """As `layer_norm` over each group of channels."""
    normal = normalise_groups(input, num_groups, eps)[0]
    return affine(normal, weight, bias, input, trailing=input.mean.dim() - 2)


def normalise_groups(input: Moments, groups: int, eps: float) -> tuple[Moments, Tensor]:
    """Every group of channels standardised, and the (batch, groups) scales."""
    shape = input.mean.shape
    mean, var = (t.reshape(shape[0], groups, -1) for t in (input.mean, input.var))
    normal, scale = standardise_over(Moments(mean, var), (-1,), eps)
    shaped = Moments(normal.mean.reshape(shape), normal.var.reshape(shape))
    return shaped, scale.squeeze(-1)


def _images(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 3, 4, 4, std=0.4)
    yield Sample(image, weight=draw.constant(3), bias=draw.constant(3))
    yield Sample(image, draw.constant(3), draw.positive(3), use_input_stats=False)
    yield Sample(draw.moments(2, 3, 16, std=0.4), eps=1e-3)


@rule(
    F.instance_norm,
    name="instance_norm",
    fidelity=APPROXIMATE,
    samples=_images,
    error=0.1,
    normalises=True,
)
def instance_norm(
    input: Moments,  # (batch, channels, *size)
    running_mean: Tensor | None = None,  # (channels,)
    running_var: Tensor | None = None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """As `layer_norm` over each channel; as `batch_norm` with running statistics."""
    if not use_input_stats:
        statistics = running_mean, running_var
        return batch_norm(input, *statistics, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.mean.dim()))
    normal, _ = standardise_over(input, axes, eps)
    return affine(normal, weight, bias, input, trailing=len(axes))


def _images_aten(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 3, 4, 4, std=0.4)
    yield Sample(image, draw.constant(3), draw.constant(3), None, None, True, 0.1, 1e-5, False)


@rule(
    torch.instance_norm,
    torch.ops.aten.instance_norm.default,
    name="instance_norm (aten order)",
    fidelity=APPROXIMATE,
    samples=_images_aten,
    error=0.1,
    normalises=True,
)
def instance_norm_aten(input: Moments, *args: object) -> Moments:
    """As `instance_norm`, with the argument order of exported programs."""
    weight, bias, running_mean, running_var, *options = args
    return instance_norm(input, running_mean, running_var, weight, bias, *options[:3])
