"""How large tensors are computed: block by block, and variances of layers through squared weights.

Blocks are such that temporaries stay in the cache. Squares are computed in every call: to make sure
that a weight is still the same takes as long.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from howsure.trees import has_values, is_tracing

# 120 kB of float32: a handful of temporaries fit into the cache, and calling an operation costs
# less than running it. Beyond 128 kB the C library may fetch every temporary from the system.
# Functions with larger temporaries ask for smaller blocks.
_BLOCK = 30720

Elementwise = Callable[..., tuple[Tensor, ...]]


def in_blocks(function: Elementwise, *inputs: Tensor, size: int = _BLOCK) -> tuple[Tensor, ...]:
    """`function(*inputs)` for an elementwise function of tensors of one shape.

    Where derivatives may be asked for, the function is called as it is. Inside `vmap` the blocks
    are cut from the whole batch, not from what one sample sees.
    """
    if torch.is_grad_enabled():
        return function(*inputs)
    if is_tracing():
        return _in_trace(function, inputs)
    found = outside_vmap(lambda *whole: _blockwise(function, whole, size), *inputs)
    return function(*inputs) if found is None else found


def _in_trace(function: Elementwise, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Images of all samples as one batch: torch's compiler puts channels last only in those."""
    if _functorch.peek_interpreter_stack() is None or inputs[0].dim() != 4:
        return function(*inputs)

    def merged(*whole: Tensor) -> tuple[Tensor, ...]:
        if whole[0].dim() != 5:
            return function(*whole)
        outputs = function(*(tensor.flatten(0, 1) for tensor in whole))
        return tuple(output.unflatten(0, whole[0].shape[:2]) for output in outputs)

    found = outside_vmap(merged, *inputs)
    return function(*inputs) if found is None else found


def outside_vmap(function: Elementwise, *inputs: Tensor) -> tuple[Tensor, ...] | None:
    """The function of tensors with their values, the samples of a `vmap` in front.

    For functions that take any number of axes in front, where no derivatives are asked for.
    `None` inside other transformations, which must see what happens.
    """
    level = _functorch.peek_interpreter_stack()
    if level is None or all(map(has_values, inputs)):
        return function(*inputs)
    if level.key() != _functorch.TransformType.Vmap:
        return None
    return _WholeBatch.apply(function, *inputs)  # pyright: ignore[reportReturnType]


def _blockwise(function: Elementwise, inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    count = inputs[0].numel()
    if not isinstance(count, int) or count <= size:
        return function(*inputs)
    order, back = _as_in_memory(*inputs)
    ordered = [tensor.permute(order) for tensor in inputs]
    shape = ordered[0].shape
    # Rows in front, to be cut without a copy: single elements, or slices of images.
    dense = all(tensor.is_contiguous() for tensor in ordered)
    whole = 0 if dense else _trailing_axes(shape, size)
    rows = [tensor.reshape(-1, *shape[len(shape) - whole :]) for tensor in ordered]
    step = max(1, size * len(rows[0]) // count)
    outputs: tuple[Tensor, ...] = ()
    for start in range(0, len(rows[0]), step):
        found = function(*(tensor[start : start + step] for tensor in rows))
        outputs = outputs or tuple(block.new_empty(rows[0].shape) for block in found)
        for output, block in zip(outputs, found, strict=True):
            output[start : start + step] = block
    return tuple(output.reshape(shape).permute(back) for output in outputs)


def _trailing_axes(shape: torch.Size, size: int) -> int:
    """How many axes at the end fit into a block together."""
    axes = range(len(shape))
    return max(whole for whole in axes if math.prod(shape[len(shape) - whole :]) <= size)


def _as_in_memory(*tensors: Tensor) -> tuple[list[int], list[int]]:
    """The axes from the slowest to the fastest, and the way back: channels may be last."""

    def step(axis: int) -> int:
        return max(tensor.stride(axis) for tensor in tensors)

    order = sorted(range(tensors[0].dim()), key=step, reverse=True)
    return order, sorted(range(len(order)), key=order.__getitem__)


class _WholeBatch(torch.autograd.Function):
    """Takes a function out of `vmap`: the same function of the stacked tensors."""

    @staticmethod
    def forward(function: Elementwise, *inputs: Tensor) -> tuple[Tensor, ...]:
        return function(*inputs)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: object) -> None:
        """Nothing to remember: this is used only where no derivatives are taken."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int | None, ...], function: Elementwise, *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = [
            tensor.movedim(dim, 0)
            if dim is not None
            else tensor.expand(info.batch_size, *tensor.shape)
            for tensor, dim in zip(inputs, in_dims[1:], strict=True)
        ]
        outputs = outside_vmap(function, *stacked) or function(*stacked)
        return outputs, (0,) * len(outputs)


_precision: contextvars.ContextVar[torch.dtype | None] = contextvars.ContextVar(
    "variance_precision", default=None
)


@contextlib.contextmanager
def layers_of_variances_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, `through_squares` computes in this dtype; `None` for that of the variance."""
    token = _precision.set(dtype)
    try:
        yield
    finally:
        _precision.reset(token)


def through_squares(op: Callable[[Tensor, Tensor], Tensor], var: Tensor, weight: Tensor) -> Tensor:
    """op(var, weight**2): a variance behind a linear layer, in the variance's dtype.

    Layers are where the time goes, so they alone run in the lower precision that was asked for.
    """
    dtype = precision_for(var)
    return op(var.to(dtype), squared(weight, dtype)).to(var.dtype)


def precision_for(var: Tensor) -> torch.dtype:
    """The dtype in which a linear layer takes this variance."""
    return _precision.get() or var.dtype


def squared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight**2` in the variance's dtype, with the channels of a convolution's kernel last.

    In a trace the layout is the compiler's business.
    """
    # A half-precision weight, squared in its own precision, would be rounded twice.
    return laid_out(weight.to(_at_least_float32(dtype)).square().to(dtype))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def laid_out(image: Tensor) -> Tensor:
    """An image or a kernel with its channels last, as torch's convolutions are fastest."""
    if image.dim() != 4 or is_tracing() or not has_values(image):
        return image
    # `contiguous` would leave an image of one channel as it is.
    return image.to(memory_format=torch.channels_last)
