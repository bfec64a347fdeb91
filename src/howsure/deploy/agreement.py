"""How far the numbers of a program, compiled or in a file, are from those of eager."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Largest relative difference to eager by type; see `differences`.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def differences(
    expected: Sequence[Tensor], written: Sequence[Tensor], *, by_part: bool = False
) -> list[float]:
    """max |a - b| of all means, then data variances, then model variances, relative to a scale.

    That of a mean is the largest mean or std, that of a variance the largest total variance: a part
    of the variance that is 0, or nearly, is no scale for itself; `by_part` it is one nevertheless.
    Another shape is infinitely far.

    Where samples are almost equal, their variance is rounding: if means move by d, it moves by at
    most d**2 + 2 d std. Such a difference counts at most as what is allowed.
    """
    count = len(expected) // 3
    means, data, model = (expected[k * count : (k + 1) * count] for k in range(3))
    totals = [_largest(one + two) for one, two in zip(data, model, strict=True)]
    stds = [total**0.5 for total in totals]
    of_variances = map(_largest, [*data, *model]) if by_part else [*totals, *totals]
    scales = [*(max(_largest(m), s) for m, s in zip(means, stds, strict=True)), *of_variances]
    # How far the rounding of many operations may move a mean.
    moved = 10 * torch.finfo(expected[0].dtype).eps * max(map(_largest, means), default=0.0)
    relative: list[float] = []
    for number, (a, b, scale) in enumerate(zip(expected, written, scales, strict=True)):
        if a.shape != b.shape:
            relative.append(float("inf"))
            continue
        b = b.to(a)
        apart = torch.where(a == b, 0, (a - b).abs())  # infinities that are equal
        difference = _largest(apart) / max(scale, torch.finfo(a.dtype).tiny)
        is_variance = number >= count
        if is_variance and bool((apart <= moved * (moved + 2 * a.clamp(min=0).sqrt())).all()):
            difference = min(difference, allowed(a))
        relative.append(difference)
    return relative


def allowed(output: Tensor) -> float:
    """The largest relative difference that rounding makes."""
    return _TOLERANCE.get(output.dtype, 1e-2)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
