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


def _scaled(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Batch norm with fixed statistics as a scale and a shift: cheaper than its derivative."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    ones = (1,) * (input.dim() - 2)
    return input * scale.reshape(-1, *ones).to(input.dtype) + shift.reshape(-1, *ones).to(
        input.dtype
    )


def _scaled_aten(input: Tensor, *args: Any) -> Any:
    weight, bias, running_mean, running_var, training, momentum, eps, *_ = args
    return _scaled(input, running_mean, running_var, weight, bias, training, momentum, eps)


# By the rule's name; a result of NotImplemented means that the rule itself is right.
TAKEN_APART: dict[str, Callable[..., Any]] = {
    "amax": _largest,
    "amin": _smallest,
    "max": _extremum(_largest, torch.maximum),
    "min": _extremum(_smallest, torch.minimum),
    "batch_norm": _scaled,
    "batch_norm (aten order)": _scaled_aten,
    "div": _quotient,
    "rdiv": lambda self, other: _quotient(other, self),
}
