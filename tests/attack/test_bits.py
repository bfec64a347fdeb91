"""Tensors are compared bit by bit, in any layout."""

import pytest
import torch

from howsure.values import bits
from howsure.values.bits import same_bits


@pytest.fixture(params=["by the C library", "by torch"])
def compared(request, monkeypatch):
    """Both ways to compare memory."""
    assert bits._memcmp is not None
    if request.param == "by torch":
        monkeypatch.setattr(bits, "_memcmp", None)


LAYOUTS = {
    "rows": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "turned": lambda t: t.transpose(0, 3),
    "part": lambda t: t[:, 1:3],
    "every second": lambda t: t[..., ::2],
    "the same again": lambda t: t[:1].expand(3, -1, -1, -1),
    "one number": lambda t: t[0, 0, 0, 0],
    "conjugate": torch.conj,
    "negative view": lambda t: torch._neg_view(t),
}


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_bits_in_any_layout(change, dtype):
    """Equal by value and layout, or by value alone; other numbers, another zero, another NaN."""
    one = change(torch.randn(3, 4, 5, 6, dtype=dtype))
    for same in (one.clone(), one.clone(memory_format=torch.contiguous_format)):
        assert same_bits(one, same) and same_bits(same, one)
    for at in ((0,) * one.dim(), (-1,) * one.dim()):
        for before, after in ((1.0, 1.0 + 1e-6), (0.0, -0.0), (float("nan"), 1.0)):
            was, now = one.clone(), one.clone()
            was[at], now[at] = before, after
            assert not same_bits(was, now) and same_bits(was, was.clone())


@pytest.mark.usefixtures("compared")
def test_bits_of_nothing_and_of_memory_that_has_gone():
    assert same_bits(torch.empty(0, 3), torch.empty(0, 3))
    assert not same_bits(torch.empty(0, 3), torch.empty(3, 0))
    one = torch.ones(2, 8)
    two = one.clone()
    two.untyped_storage().resize_(32)
    assert not same_bits(one, two) and not same_bits(two, one)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16, torch.complex64])
def test_parts_of_larger_tensors_are_compared_wherever_they_begin(dtype):
    whole = torch.arange(40).to(dtype)
    for begin in range(9):
        part = whole[begin : begin + 8]
        assert same_bits(part, part.clone()) and not same_bits(part, part + 1)
