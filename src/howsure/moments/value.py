"""The value that every moment rule sees, a mean and a variance per element; and noisy inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.trees import has_values

HALF_PRECISION = (torch.float16, torch.bfloat16)

# A torch operation, and what it is called with: anything.
Target = Callable[..., Any]
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


def substitute(tree: object, kind: type | tuple[type, ...], function: Target) -> Any:
    """`tree` with `function(leaf)` in place of every leaf of this kind.

    Trees are the nested tuples, lists and dicts that torch operations take and return.
    """
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: substitute(item, kind, function) for key, item in tree.items()}
    if not isinstance(tree, (tuple, list)) or isinstance(tree, torch.Size):
        return tree
    # Every operation asks: a call for each number would take as long as small rules.
    inner = (*kind, *_NESTED) if isinstance(kind, tuple) else (kind, *_NESTED)
    items = [substitute(item, kind, function) if isinstance(item, inner) else item for item in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


_NESTED = (tuple, list, dict)


def leaves_of(tree: object, kind: type | tuple[type, ...]) -> list[Any]:
    """All leaves of this kind, in order."""
    leaves: list[Any] = []
    substitute(tree, kind, leaves.append)
    return leaves


def mean_of(tree: object) -> Any:
    """The mean of a Gaussian, the value of a constant; arguments with means for Gaussians."""
    return tree.mean if isinstance(tree, Moments) else substitute(tree, Moments, mean_of)


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


def noisy(x: object, noise_var: Any, make: Callable[[Moments], object], name: str = "x") -> Any:
    """`x` with every tensor that has a noise variance replaced by `make(moments)`.

    `noise_var` has the structure of `x`, with a number, a tensor or `None` (no noise) for each
    tensor; a dict may leave out the inputs without noise.
    """
    if noise_var is None:
        return x
    if isinstance(x, Tensor):
        return make(input_moments(x, noise_var, name))
    if isinstance(x, Mapping) and isinstance(noise_var, Mapping):
        return _noisy_mapping(x, noise_var, make, name)
    if isinstance(x, Sequence) and isinstance(noise_var, Sequence) and not isinstance(x, str):
        return _noisy_sequence(x, noise_var, make, name)
    raise TypeError(
        f"`noise_var` must have the structure of `{name}`, with one variance (or None) for each "
        f"tensor; `{name}` is a {type(x).__name__} and its variance a {type(noise_var).__name__}."
    )


def _noisy_mapping(
    x: Mapping[object, object],
    noise_var: Mapping[object, object],
    make: Callable[[Moments], object],
    name: str,
) -> object:
    unknown = [key for key in noise_var if key not in x]
    if unknown:
        raise ValueError(
            f"`noise_var` names {unknown[0]!r}, which is not among the inputs {list(x)}."
        )
    return {
        key: noisy(item, noise_var.get(key), make, f"{name}[{key!r}]") for key, item in x.items()
    }


def _noisy_sequence(
    x: Sequence[object], noise_var: Sequence[object], make: Callable[[Moments], object], name: str
) -> object:
    if len(x) != len(noise_var):
        raise ValueError(
            f"`{name}` has {len(x)} parts but `noise_var` has {len(noise_var)}; give one variance, "
            "or None, for each."
        )
    items = [
        noisy(item, var, make, f"{name}[{i}]")
        for i, (item, var) in enumerate(zip(x, noise_var, strict=True))
    ]
    constructor: Any = type(x)
    return constructor(*items) if hasattr(x, "_fields") else constructor(items)


def input_moments(x: Tensor, noise_var: float | Tensor, name: str = "x") -> Moments:
    """`x` with its sensor's variance, broadcast to its shape; an error says what does not fit."""
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"`{name}` is {x.dtype}, and only floating-point inputs can carry noise; convert it "
            "as the model's preprocessing does, or give it the variance None."
        )
    dtype = variance_dtype(x.dtype)
    var = torch.as_tensor(noise_var, dtype=dtype, device=x.device)
    _check_variance(noise_var if isinstance(noise_var, (int, float)) else var)
    if has_values(x) and not bool(torch.isfinite(x).all()):
        raise ValueError(f"`{name}` contains NaN or infinity; every input must be finite.")
    try:
        var = var.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"`noise_var` of shape {tuple(var.shape)} does not broadcast to `{name}` of shape "
            f"{tuple(x.shape)}; a variance per channel of an image has shape (C, 1, 1)."
        ) from None
    return Moments(x, var)


def _check_variance(var: float | Tensor) -> None:
    if isinstance(var, Tensor):
        if not has_values(var):
            return
        finite, negative = bool(torch.isfinite(var).all()), bool((var < 0).any())
    else:
        finite, negative = math.isfinite(var), var < 0
    if not finite:
        raise ValueError("`noise_var` contains NaN or infinity; a variance must be finite.")
    if negative:
        raise ValueError(
            "`noise_var` contains a negative number; it is a variance, the square of the "
            "sensor's standard deviation, and must be 0 or more."
        )
