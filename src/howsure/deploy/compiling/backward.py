"""Backward operations as forward ones, which every compiler and runtime knows."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

_FEW = 4


def convolution_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, None, None]:
    """The gradient of a convolution's input: the convolution that goes the other way.

    A strided convolution leaves out what does not fill a step; `output_padding` brings it back.
    """
    if list(output_mask) != [True, False, False]:
        return NotImplemented
    spatial = len(stride)
    kernel, size = weight.shape[2:], input.shape[2:]
    fitting = [
        (grad.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1
        for i in range(spatial)
    ]
    missing = [0] * spatial if transposed else [s - f for s, f in zip(size, fitting, strict=True)]
    settings = (stride, padding, dilation, not transposed, missing, groups)
    return aten.convolution.default(grad, weight, None, *settings), None, None


def _of_few_channels(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *settings: Any,
) -> object:
    """The same as a product and a sum of shifted maps, where images have few channels.

    Processors are slow at convolutions that make one or three channels.
    """
    dilation, transposed, _, groups, mask = settings
    is_plain = len(stride) == 2 and not transposed and groups == 1 and max(dilation) == 1
    if list(mask) != [True, False, False] or not is_plain or weight.shape[1] > _FEW:
        return convolution_backward(grad, input, weight, bias_sizes, stride, padding, *settings)
    out, own, *kernel = weight.shape
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]  # per phase of the stride
    missing = [t * s - k for t, s, k in zip(taps, stride, kernel, strict=True)]
    filled = aten.constant_pad_nd(weight, [0, missing[1], 0, missing[0]])
    rows = grad.permute(0, 2, 3, 1)
    shape = (*rows.shape[:3], own, taps[0], stride[0], taps[1], stride[1])
    parts = (rows.reshape(-1, out) @ filled.reshape(out, -1)).reshape(shape)
    return _folded(parts, taps, padding, input.shape), None, None


def _folded(
    parts: Tensor, taps: Sequence[int], padding: Sequence[int], shape: Sequence[int]
) -> Tensor:
    """The sum of what all windows say about a pixel; parts are (n, h, w, c, tap, phase, ...)."""
    pairs = [(i, j) for i in range(taps[0]) for j in range(taps[1])]
    none = [0] * 6
    around = [[j, taps[1] - 1 - j, i, taps[0] - 1 - i] for i, j in pairs]
    shifted = [
        aten.constant_pad_nd(parts[:, :, :, :, i, :, j], [*none, *pad])
        for (i, j), pad in zip(pairs, around, strict=True)
    ]
    total: Tensor = functools.reduce(operator.add, shifted)
    whole = total.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    left = [shape[2 + k] + padding[k] - whole.shape[2 + k] for k in (0, 1)]
    # Negative padding cuts off.
    return aten.constant_pad_nd(whole, [-padding[1], left[1], -padding[0], left[0]])


def max_pool2d_backward(
    grad: Tensor,
    input: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Every gradient at the place where the maximum was."""
    flat = torch.zeros_like(input).flatten(-2)
    return flat.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(input.shape)


def avg_pool2d_backward(
    grad: Tensor,
    input: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> object:
    """Every gradient spread over its window: a transposed convolution with equal weights."""
    if ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride else kernel
    share = 1 / (divisor_override or kernel[0] * kernel[1])
    weight = torch.full((1, 1, *kernel), share, dtype=grad.dtype, device=grad.device)
    one, whole = (t.reshape(-1, 1, *t.shape[-2:]) for t in (grad, input))
    settings = (stride, padding, [1, 1], False, [0, 0], 1, [True, False, False])
    return convolution_backward(one, whole, weight, None, *settings)[0].reshape(input.shape)


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) * (2 // len(sizes))


def silu_backward(grad: Tensor, input: Tensor) -> Tensor:
    """The gradient of x s(x), with the sigmoid s."""
    s = torch.sigmoid(input)
    return grad * s * (1 + input * (1 - s))


def mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """The gradient of x t(x), with t the tanh of the softplus."""
    t = torch.tanh(torch.nn.functional.softplus(input))
    return grad * (t + input * torch.sigmoid(input) * (1 - t * t))


DECOMPOSITIONS: dict[OpOverload, Callable[..., object]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
    aten.silu_backward.default: silu_backward,
    aten.mish_backward.default: mish_backward,
}
# What compiled programs take besides.
COMPILED = {**DECOMPOSITIONS, aten.convolution_backward.default: _of_few_channels}
