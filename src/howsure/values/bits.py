"""Tensors compared bit by bit."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors hold the same bits; unlike `==`, it tells NaN from NaN, and 0 from -0."""
    alike = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    return alike and torch.equal(*bits_of(one, two))


def bits_of(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape and dtype as whole numbers; views of them where it is possible."""
    one, two = (each.detach().resolve_conj().resolve_neg() for each in (one, two))
    if one.is_complex():
        one, two = torch.view_as_real(one), torch.view_as_real(two)
    if _fits_widest(one) and _fits_widest(two):  # the widest are compared fastest
        return one.reshape(-1).view(torch.int64), two.reshape(-1).view(torch.int64)
    kind = _BITS[one.element_size()]
    return one.view(kind), two.view(kind)


def _fits_widest(tensor: Tensor) -> bool:
    """Whether a tensor can be seen as numbers of 8 bytes; a part may begin in the midst of one."""
    size = tensor.element_size()
    begin, length = size * tensor.storage_offset(), size * tensor.numel()
    return tensor.is_contiguous() and begin % 8 == 0 and length % 8 == 0
