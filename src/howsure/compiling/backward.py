"""Backward operations as forward ones, which every compiler and runtime knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


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
) -> Any:
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
) -> Any:
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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
}
