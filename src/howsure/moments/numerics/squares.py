"""Squares of weights, through which variances pass, and the layout of images and kernels.

They are computed in every call: to make sure that a weight is still the same takes as long.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from howsure.values.trees import has_values, is_traced

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
    if image.dim() != 4 or is_traced() or not has_values(image):
        return image
    # `contiguous` would leave an image of one channel as it is.
    return image.to(memory_format=torch.channels_last)
