"""What a model computes with."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors hold the same bits: unlike `==`, it knows NaN from NaN, and -0 from 0."""
    alike = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    return alike and torch.equal(_bits(one), _bits(two))


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_contiguous() and tensor.numel() * tensor.element_size() % 8 == 0:
        return tensor.reshape(-1).view(torch.int64)  # the widest are compared fastest
    return tensor.view(_BITS[tensor.element_size()])
