"""Operations that are better taken apart when correlations are carried.

Their rules count the elements as independent. Written with operations of two, they use the
covariance that the probes carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from howsure.gaussian import Gaussian
from howsure.registry import Target, spellings

# Operations that hide a tensor from training, but not from noise.
HIDING: frozenset[Target] = frozenset(
    (*spellings("detach"), torch.Tensor.data.__get__)  # pyright: ignore[reportAttributeAccessIssue]
)


def _largest(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The larger of two halves, again and again: Clark's `maximum` with covariance."""
    return _halved(torch.maximum, input, dim, keepdim)


def _smallest(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """As `amax`, with `minimum`."""
    return _halved(torch.minimum, input, dim, keepdim)


def _halved(of_two: Target, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    axes = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.dim()))
    axes = [axis % max(x.dim(), 1) for axis in axes]
    for axis in axes:
        while x.shape[axis] > 1:
            half = x.shape[axis] // 2
            merged = of_two(x.narrow(axis, 0, half), x.narrow(axis, half, half))
            odd = x.shape[axis] - 2 * half
            x = torch.cat([merged, x.narrow(axis, 2 * half, 1)], axis) if odd else merged
    return x if keepdim else x.squeeze(tuple(axes))


def _extremum(over_all: Callable[[Tensor], Tensor], of_two: Target) -> Callable[..., Any]:
    def extremum(input: Any, *args: Any, **kwargs: Any) -> Any:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, Tensor):
            return of_two(input, other)
        return NotImplemented if args or kwargs else over_all(input)

    return extremum


def _quotient(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """The product with the reciprocal, which may be correlated with the numerator."""
    if rounding_mode is not None or not isinstance(other, Gaussian):
        return NotImplemented
    return torch.reciprocal(other) * input


# By the rule's name; a result of NotImplemented means that the rule itself is right.
TAKEN_APART: dict[str, Callable[..., Any]] = {
    "amax": _largest,
    "amin": _smallest,
    "max": _extremum(_largest, torch.maximum),
    "min": _extremum(_smallest, torch.minimum),
    "div": _quotient,
    "rdiv": lambda self, other: _quotient(other, self),
}
