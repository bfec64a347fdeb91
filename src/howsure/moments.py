"""The value that every moment rule sees: a mean and a variance per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HALF_PRECISION = (torch.float16, torch.bfloat16)


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
        innovation: Computes the part of `var` that is not first order in the inputs, that is
            `var - sum_j (d mean / d mean_j)**2 var_j`. `None` if the rule does not state it.
    """

    mean: Tensor
    var: Tensor
    innovation: Callable[[], Tensor] | None = None


def variance_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which variances of `dtype` means are kept."""
    return torch.float32 if dtype in HALF_PRECISION else dtype


def linear_moments(mean: Tensor, var: Tensor) -> Moments:
    """Moments of an op that is linear in its random input: nothing beyond first order."""
    return Moments(mean, var, innovation=lambda: torch.zeros_like(var))


@dataclass(frozen=True, eq=False)
class Expansion:
    """Moments of an elementwise operation with what they are made of, computed together.

    Attributes:
        mean: Expected value.
        var: Variance.
        innovation: The part of `var` that is not first order in the inputs.
        slopes: d mean / d mean_j for every random input, in the order of the arguments.
    """

    mean: Tensor
    var: Tensor
    innovation: Tensor
    slopes: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Refused:
    """A part of a result that must not be used, such as the position of a maximum.

    Attributes:
        value: What it is at the mean.
        reason: Why, and what to do.
    """

    value: Tensor
    reason: str
