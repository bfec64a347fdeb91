"""Elementwise functions evaluated block by block, so that temporaries stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from howsure.concrete import is_traced

# 256 kB of float32: small enough for the cache, large enough that calling an operation costs
# little beside running it. Functions with larger temporaries ask for smaller blocks.
_BLOCK = 65536

Elementwise = Callable[..., tuple[Tensor, ...]]


def in_blocks(function: Elementwise, *inputs: Tensor, size: int = _BLOCK) -> tuple[Tensor, ...]:
    """`function(*inputs)` for an elementwise function of tensors of one shape.

    Where derivatives may be asked for, the function is called as it is. Inside `vmap` the blocks
    are cut from the whole batch, not from what one sample sees.
    """
    level = _functorch.peek_interpreter_stack()
    if torch.is_grad_enabled() or is_traced():
        return function(*inputs)
    if level is None:
        return _blockwise(function, inputs, size)
    if level.key() != _functorch.TransformType.Vmap:
        return function(*inputs)
    return _WholeBatch.apply(function, size, *inputs)  # pyright: ignore[reportReturnType]


def _blockwise(function: Elementwise, inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    count = inputs[0].numel()
    if not isinstance(count, int) or count <= size:
        return function(*inputs)
    blocks = zip(*(tensor.reshape(-1).split(size) for tensor in inputs), strict=True)
    columns = zip(*(function(*block) for block in blocks), strict=True)
    return tuple(torch.cat(column).reshape(inputs[0].shape) for column in columns)


class _WholeBatch(torch.autograd.Function):
    """Takes an elementwise function out of `vmap`: the same function of the stacked tensors."""

    @staticmethod
    def forward(function: Elementwise, size: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _blockwise(function, inputs, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to remember: this is used only where no derivatives are taken."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        function: Elementwise,
        size: int,
        *inputs: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = [
            tensor.movedim(dim, 0)
            if dim is not None
            else tensor.expand(info.batch_size, *tensor.shape)
            for tensor, dim in zip(inputs, in_dims[2:], strict=True)
        ]
        outputs = in_blocks(function, *stacked, size=size)
        return outputs, (0,) * len(outputs)
