"""Products of the elements along a dimension: exact for independent elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from howsure.moments.families import composite_of
from howsure.moments.rule import rule_of
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments, variance_dtype


def _dimensions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(4))
    yield Sample(draw.moments(2, 3, 4), 1)
    yield Sample(draw.moments(2, 4), -1, keepdim=True)


@rule_of("prod", inplace=False, samples=_dimensions)
def prod(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Var of x y as m1**2 v2 + m2**2 v1 + v1 v2, pair by pair.

    Assumes: independent elements; exact then.

    Source: Goodman 1960; `mul`.
    """
    mean = torch.prod(input.mean, *args, **kwargs)
    dtype = variance_dtype(mean.dtype)
    dim = args[0] if args else kwargs.get("dim")
    m, v = (_in_front(t.to(dtype), dim) for t in (input.mean, input.var))
    while m.shape[0] > 1:
        half = m.shape[0] // 2
        rest = m[2 * half :], v[2 * half :]
        m, v = _multiplied(m[:half], v[:half], m[half : 2 * half], v[half : 2 * half])
        m, v = torch.cat([m, rest[0]]), torch.cat([v, rest[1]])
    return Moments(mean, v.reshape(mean.shape))


def _in_front(x: Tensor, dim: int | None) -> Tensor:
    """The elements to be multiplied along the first axis."""
    return x.flatten() if dim is None else x.movedim(dim, 0)


def _multiplied(m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
    return m1 * m2, m1.square() * v2 + m2.square() * v1 + v1 * v2


@composite_of(
    "cumprod",
    wide=True,
    samples=lambda draw: [Sample(draw.moments(3, 4), 1), Sample(draw.moments(4), dim=0)],
)
def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """The products of the first 1, 2, 3, ... elements.

    Assumes: independent elements; exact for each output. The outputs are strongly correlated.

    Source: `mul`.
    """
    parts = (input if dtype is None else input.to(dtype)).unbind(dim)
    products = [parts[0]]
    for part in parts[1:]:
        products.append(products[-1] * part)
    return torch.stack(products, dim)
