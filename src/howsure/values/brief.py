"""Values in a few words, for a `repr` of one line: never a tensor in full."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from howsure.trees import has_values


def brief(value: object) -> str:
    """A number with three digits, a tensor by shape and range, also in tuples; else as it is."""
    if isinstance(value, Tensor):
        return number_range([value]) if value.numel() == 1 else _tensor(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))})"
    return f"{value:.3g}" if isinstance(value, float) else repr(value)


def _tensor(value: Tensor) -> str:
    shape = " x ".join(map(str, value.shape))
    return f"[{shape} values, {number_range([value])}]" if value.numel() else f"[{shape}]"


def number_range(tensors: Sequence[Tensor]) -> str:
    """The smallest and the largest element: `0.02 to 0.11`, or one number if they agree."""
    filled = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not filled or not all(map(has_values, filled)):
        return "unknown"
    low = f"{min(float(tensor.min()) for tensor in filled):.3g}"
    high = f"{max(float(tensor.max()) for tensor in filled):.3g}"
    return low if low == high else f"{low} to {high}"
