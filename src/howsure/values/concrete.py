"""Tells tensors with values from stand-ins inside a transformation or a trace."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_functorch_wrapped_tensor,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _disable_current_modes


def has_values(tensor: Tensor) -> bool:
    """Whether the values can be looked at: not inside `vmap`, `torch.export` or `torch.compile`."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not is_traced()
        and not is_functorch_wrapped_tensor(tensor)
    )


def is_traced() -> bool:
    """Whether operations are being written down: `torch.export`, `torch.compile`, `make_fx`."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def outside_traces() -> AbstractContextManager[object]:
    """Operations on constants are done at once, and a trace sees what comes out."""
    return _disable_current_modes()
