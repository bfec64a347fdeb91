"""Gradients with respect to images of few channels, computed by a product of matrices.

The first convolution of a network sees 1 to 4 channels. On a CPU, oneDNN's gradient of such an
input takes several times as long as the convolution itself. The transposed kernel times the
gradient of the output, put together by `F.fold`, is the same sum in a fraction of the time. The
maximum over places, which often follows, is taken with channels last: the same numbers, and the
same places among equal ones, in a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.operations import Operations, base_name
from howsure.private_torch import hooks_of_saved_tensors
from howsure.trees import has_values, is_tracing

_FEW_CHANNELS = 4
# Channels from which a maximum with channels last pays for the copies.
_FEWEST_CHANNELS = 8
# The product has a row for each number of a kernel's window, the gradient one for each output
# channel. Far beyond this ratio (measured: 22) to write the product takes longer than it saves.
_MOST_ROWS_PER_CHANNEL = 8
# Numbers of images in a pass below which to look for convolutions takes longer than they save
# (measured: 14,000 to 28,000).
_FEWEST_NUMBERS = 2**14
# Narrower ones would be added up with their own rounding; oneDNN adds them up in float32.
_DTYPES = (torch.float32, torch.float64)


def fast_image_gradients(images: Iterable[Tensor], copies: int = 1) -> AbstractContextManager[Any]:
    """A mode for forward passes at so many copies; without effect where no image gains from it."""
    if is_tracing() or hooks_of_saved_tensors is None:
        return nullcontext()
    gains = any(
        x.shape[1] <= _FEW_CHANNELS and x.numel() * copies >= _FEWEST_NUMBERS for x in images
    )
    return _ImageGradients() if gains else nullcontext()


class _Geometry(NamedTuple):
    """How a kernel moves over an image, (height, width) each."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class _ImageGradients(Operations):
    """Replaces how convolutions of few channels compute the gradient of their input."""

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation."""
        if base_name(func) == "max_pool2d" and args and _pools_faster(args[0]):
            pooled = func(
                args[0].contiguous(memory_format=torch.channels_last), *args[1:], **kwargs
            )
            return pooled.contiguous() if isinstance(pooled, Tensor) else pooled
        output = _convolution(*args, **kwargs) if func is torch.conv2d else None
        return func(*args, **kwargs) if output is None else output


def _pools_faster(x: object) -> bool:
    """Whether channels are many enough to go through all of them at once."""
    return (
        isinstance(x, Tensor)
        and x.dim() == 4
        and x.shape[1] >= _FEWEST_CHANNELS
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and x.is_contiguous()
        and has_values(x)
    )


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """The convolution with another gradient of its input; `None` where it has to be the usual."""
    if groups != 1 or not _gains(input, weight):
        return None
    strides, dilations = _pair(stride), _pair(dilation)
    paddings = _paddings(padding, weight, dilations)
    if paddings is None:
        return None
    plain = F.conv2d(input.detach(), weight, bias, strides, paddings, dilations)
    geometry = _Geometry(strides, paddings, dilations)
    output: Any = _WithInputGradient.apply(plain, input, weight, bias, geometry)
    return output


def _gains(x: Tensor, weight: Tensor) -> bool:
    """Whether the gradient of an input is needed, and the product gives it sooner."""
    return (
        torch.is_grad_enabled()
        and x.requires_grad
        and x.dim() == 4
        and x.shape[1] <= _FEW_CHANNELS
        and weight[0].numel() <= _MOST_ROWS_PER_CHANNEL * len(weight)
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and not torch.is_autocast_enabled("cpu")
        and has_values(x)
        and has_values(weight)
        and hooks_of_saved_tensors is not None
        and hooks_of_saved_tensors(False) is None
    )


def _pair(sizes: int | Sequence[int]) -> tuple[int, ...]:
    both = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return both * 2 if len(both) == 1 else both


def _paddings(
    padding: str | int | Sequence[int], weight: Tensor, dilation: Sequence[int]
) -> tuple[int, ...] | None:
    """The padding of both sides of each axis; `None` where "same" pads one side more."""
    if not isinstance(padding, str):
        return _pair(padding)
    both = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
    if padding == "valid":
        return (0, 0)
    return None if any(size % 2 for size in both) else tuple(size // 2 for size in both)


class _WithInputGradient(torch.autograd.Function):
    """A convolution of a detached input, and the gradient of that input.

    The gradients of weight and bias are left to the convolution, which computes them only if they
    are asked for: `needs_input_grad` would not tell.
    """

    @staticmethod
    def forward(
        ctx: Any,
        plain: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: _Geometry,
    ) -> Tensor:
        """The convolution itself, no copy or view of it: the network may write into it."""
        ctx.mark_dirty(plain)
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.has_bias = geometry, bias is not None
        return plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the detached convolution and of the input.

        If they are to be differentiated again, all come from here instead, as the library computes
        them: the gradient of the weight is a function of the input that was detached.
        """
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            sizes = [len(weight)] if ctx.has_bias else None
            return None, *_backward(gradient, x, weight, sizes, ctx.geometry), None
        return gradient, _input_gradient(gradient, x, weight, ctx.geometry), None, None, None


def _input_gradient(gradient: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry) -> Tensor:
    """The transposed kernel times the gradient, (batch, window, places), added up in place."""
    columns = weight.flatten(1).T @ gradient.flatten(2)
    stride, padding, dilation = geometry
    return F.fold(columns, x.shape[2:], weight.shape[2:], dilation, padding, stride)


def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: list[int] | None, geometry: _Geometry
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias, differentiable."""
    stride, padding, dilation = geometry
    wanted = [True, True, bias is not None]
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, bias, stride, padding, dilation, False, [0, 0], 1, wanted
    )
