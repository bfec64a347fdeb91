"""Sums and means over dimensions."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from howsure.moments.rule import Kind, rule_of
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments, variance_dtype


def _dimensions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4))
    yield Sample(draw.moments(2, 3, 4), 1)
    yield Sample(draw.moments(2, 3, 4, 2), (2, 3), keepdim=True)
    yield Sample(draw.moments(2, 3, 4), dim=-1)


@rule_of("sum", samples=_dimensions, kind=Kind.LINEAR_MAP, adds_up=True)
def sum(
    input: Moments,
    dim: int | list[int] | tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Moments:
    """Var = sum of the variances.

    Assumes: independent elements; exact then.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    mean = torch.sum(input.mean, dim, keepdim, dtype=dtype)
    var = torch.sum(input.var, dim, keepdim, dtype=variance_dtype(mean.dtype))
    return Moments(mean, var)


@rule_of("mean", samples=_dimensions, kind=Kind.LINEAR_MAP, adds_up=True)
def mean(
    input: Moments,
    dim: int | list[int] | tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Moments:
    """Var = sum of the variances / n**2.

    Assumes: independent elements; exact then. Neighbouring features are correlated in a trained
    network, which makes a global average pool the second main error of diagonal propagation.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    average = torch.mean(input.mean, dim, keepdim, dtype=dtype)
    var = torch.mean(input.var, dim, keepdim, dtype=variance_dtype(average.dtype))
    count = max(input.mean.numel() // max(average.numel(), 1), 1)
    return Moments(average, var / count)


@rule_of(
    "cumsum",
    kind=Kind.LINEAR_MAP,
    samples=lambda draw: [Sample(draw.moments(3, 4), 1), Sample(draw.moments(5), dim=0)],
)
def cumsum(input: Moments, dim: int, *, dtype: torch.dtype | None = None) -> Moments:
    """Var = running sum of the variances.

    Assumes: independent elements; exact for each output. The outputs are strongly correlated.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    total = torch.cumsum(input.mean, dim, dtype=dtype)
    return Moments(total, torch.cumsum(input.var, dim, dtype=variance_dtype(total.dtype)))
