"""Counts the operations of convolutions and matrix products: a cost that no machine disturbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

aten = torch.ops.aten
# Inference mode shows these whole, and not the operations that they are made of.
_CONVOLUTIONS = {aten.conv1d, aten.conv2d, aten.conv3d, aten.mkldnn_convolution}

# Whole recurrent layers; the backward pass makes the gradients of states and of weights.
_RECURRENT = {aten.mkldnn_rnn_layer: 1, aten.mkldnn_rnn_layer_backward: 2}


class Operations(TorchDispatchMode):
    """Counts multiplications and additions of convolutions and matrix products."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and adds what it costs."""
        out = func(*args, **(kwargs or {}))
        self.total += _count(func.overloadpacket, args, kwargs or {}, out)
        return out


def _count(operation: Any, args: Any, kwargs: Any, out: Any) -> int:
    if operation in _CONVOLUTIONS:
        return conv_flop_count(args[0].shape, args[1].shape, out.shape)
    if operation is aten.linear:
        return 2 * out.numel() * args[1].shape[-1]
    if operation is aten.matmul:
        return 2 * out.numel() * args[0].shape[-1]
    if operation in _RECURRENT:  # input, weights of inputs, weights of states
        work = 2 * args[0].shape[:2].numel() * (args[1].numel() + args[2].numel())
        return _RECURRENT[operation] * work
    count = flop_registry.get(operation)
    return 0 if count is None else count(*args, **kwargs, out_val=out)


def operations_of(function: Callable[[], Any]) -> int:
    """The operations of one call."""
    with Operations() as counted:
        function()
    return counted.total


def cost(method: Callable[[], Any], model: nn.Module, x: Any) -> float:
    """Operations of a method, relative to one plain forward pass."""
    with torch.no_grad():
        plain = operations_of(lambda: model(x))
    return operations_of(method) / plain
