"""Tensors compared bit by bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors hold the same bits; unlike `==`, it tells NaN from NaN, and 0 from -0."""
    alike = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    if alike and _is_memory(one) and _is_memory(two) and one.stride() == two.stride():
        return _same_memory(one, two)
    return alike and torch.equal(*bits_of(one, two))


def bits_of(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape and dtype as whole numbers; views of them where it is possible."""
    one, two = (each.detach().resolve_conj().resolve_neg() for each in (one, two))
    if one.is_complex():
        one, two = torch.view_as_real(one), torch.view_as_real(two)
    kind = _BITS[one.element_size()]
    return one.view(kind), two.view(kind)


def _same_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two pieces of memory of one size are the same; none is, if a part has gone."""
    if not (_is_whole(one) and _is_whole(two)):
        return False
    # The C library compares twice as fast as torch, whose loop takes number by number.
    if _memcmp is None:
        return torch.equal(*bits_of(one, two))
    return _memcmp(one.data_ptr(), two.data_ptr(), one.numel() * one.element_size()) == 0


def _is_memory(tensor: Tensor) -> bool:
    """Whether a tensor is one piece of the computer's memory, read as it is."""
    if tensor.device.type != "cpu" or tensor.is_neg() or tensor.is_conj():
        return False
    last = torch.channels_last
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=last)
    )


def _is_whole(tensor: Tensor) -> bool:
    """Whether the storage was not made smaller than the tensor."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return end <= tensor.untyped_storage().nbytes()


def _of_the_c_library() -> Callable[[int, int, int], int] | None:
    """`memcmp`; `None` where it is not found."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # Windows has no such library of all.
        return None
    found.argtypes, found.restype = (
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        ctypes.c_int,
    )
    return found


_memcmp = _of_the_c_library()
