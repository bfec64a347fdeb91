"""The value that every moment rule sees: a mean and a variance per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HALF_PRECISION = (torch.float16, torch.bfloat16)

# What a torch operation is called with: anything.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Moments:
    """Independent Gaussians: one mean and one variance for every element of a tensor.

    Two `Moments` are equal only if they are the same object: that is how a rule recognises
    `x * x`, whose operands are not independent.

    The variance of a half-precision mean is kept in float32: a sensor variance of 1e-5 has no
    useful representation in float16.

    Attributes:
        mean: Expected value.
        var: Variance, never negative; same shape as `mean`.
    """

    mean: Tensor
    var: Tensor


def variance_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which variances of `dtype` means are kept."""
    return torch.float32 if dtype in HALF_PRECISION else dtype


def certain(value: Tensor) -> Moments:
    """A constant as moments: variance 0."""
    return Moments(value, torch.zeros_like(value, dtype=variance_dtype(value.dtype)))


def as_moments(value: Moments | Tensor) -> Moments:
    """The moments themselves, or those of a constant."""
    return value if isinstance(value, Moments) else certain(value)


@dataclass(frozen=True, eq=False)
class Refused:
    """A part of a result that must not be used, such as the position of a maximum.

    Attributes:
        value: What it is at the mean.
        reason: Why, and what to do.
    """

    value: Tensor
    reason: str
