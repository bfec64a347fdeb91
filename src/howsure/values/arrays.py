"""Tensors as numpy arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from howsure.values.trees import map_leaves


def as_array(tensor: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_tensors(x: Any, model: nn.Module) -> Any:
    """Arrays of an input as tensors; floating-point ones in the type and on the device of a model.

    A model computes in one precision, and numpy's own is twice that of most.
    """
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))

    def leaf(each: Any) -> Any:
        if not isinstance(each, np.ndarray):
            return each
        tensor = torch.from_numpy(each).to(own.device)
        return tensor.to(own.dtype) if tensor.is_floating_point() else tensor

    return map_leaves(leaf, x)
