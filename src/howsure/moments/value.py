"""The value that every moment rule sees, a mean and a variance per element; and trees of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HALF_PRECISION = (torch.float16, torch.bfloat16)

# A torch operation, and what it is called with: anything.
Target = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Moments:
    """Independent Gaussians: one mean and one variance for every element of a tensor.

    Two `Moments` are equal only if they are the same object: that is how a rule recognizes
    `x * x`, whose operands are not independent.

    The variance of a half-precision mean is kept in float32: a sensor variance of 1e-5 has no
    useful representation in float16.

    Attributes:
        mean: Expected value.
        var: Variance, never negative; same shape as `mean`.

    Examples:
        >>> hs.Moments(torch.zeros(2), torch.ones(2)).var
        tensor([1., 1.])
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


_NESTED = (tuple, list, dict)


def substitute(tree: object, kind: type | tuple[type, ...], function: Target) -> Any:
    """`tree` with `function(leaf)` in place of every leaf of this kind.

    Trees are the nested tuples, lists and dicts that torch operations take and return.
    """
    if isinstance(tree, kind):
        return function(tree)
    if not isinstance(tree, _NESTED) or isinstance(tree, torch.Size) or not tree:
        return tree
    if isinstance(tree, dict):
        return {key: substitute(item, kind, function) for key, item in tree.items()}
    # Every operation asks: a call for each number would take as long as small rules.
    inner = (kind, _NESTED)
    items = [substitute(item, kind, function) if isinstance(item, inner) else item for item in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def leaves_of(tree: object, kind: type) -> Iterator[Any]:
    """All leaves of this kind, in order."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, _NESTED):
        for item in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(item, kind):
                yield item
            elif isinstance(item, _NESTED):
                yield from leaves_of(item, kind)


def mean_of(tree: object) -> Any:
    """The mean of a Gaussian, the value of a constant; arguments with means for Gaussians."""
    return tree.mean if isinstance(tree, Moments) else substitute(tree, Moments, _mean)


_mean = operator.attrgetter("mean")


def var_of(operand: object) -> Any:
    """The variance of a Gaussian, 0 for a constant."""
    return operand.var if isinstance(operand, Moments) else 0.0


@dataclass(frozen=True, eq=False)
class Refused:
    """A part of a result that must not be used, such as the position of a maximum.

    Attributes:
        value: What it is at the mean.
        reason: Why, and what to do.
    """

    value: Tensor
    reason: str
