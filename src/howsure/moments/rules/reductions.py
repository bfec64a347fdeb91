"""Sums, means, products and differences along dimensions: exact for independent elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite_of
from howsure.moments.numerics.blocks import squared
from howsure.moments.rule import EXACT, Draw, Kind, Sample, rule, rule_of
from howsure.moments.value import Moments, as_moments, variance_dtype


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


def _one_dimension(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(4))
    yield Sample(draw.moments(2, 3, 4), 1)
    yield Sample(draw.moments(2, 4), -1, keepdim=True)


@rule_of("prod", inplace=False, samples=_one_dimension)
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
    """As `mul`, one element after the other; the outputs are strongly correlated."""
    parts = (input if dtype is None else input.to(dtype)).unbind(dim)
    products = [parts[0]]
    for part in parts[1:]:
        products.append(products[-1] * part)
    return torch.stack(products, dim)


def _neighbours(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 5))
    yield Sample(draw.moments(5, 3), n=2, dim=0)
    yield Sample(draw.moments(3, 5), 1, -1, draw.moments(3, 1), draw.constant(3, 2))


@rule_of("diff", inplace=False, samples=_neighbours)
def diff(
    input: Moments,
    n: int = 1,
    dim: int = -1,
    prepend: Moments | Tensor | None = None,
    append: Moments | Tensor | None = None,
) -> Moments:
    """Var = sum_k binomial(n, k)**2 v of the n + 1 neighbours.

    Assumes: independent elements; exact for each output.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    parts = [as_moments(x) for x in (prepend, input, append) if x is not None]
    mean = torch.diff(torch.cat([part.mean for part in parts], dim), n, dim)
    var = torch.cat([part.var for part in parts], dim)
    count = var.shape[dim] - n
    spread = [var.narrow(dim, k, count) * math.comb(n, k) ** 2 for k in range(n + 1)]
    return Moments(mean, torch.stack(spread).sum(0))


def _bags(draw: Draw) -> Iterable[Sample]:
    ids, table = torch.tensor([[0, 2], [1, 3]]), draw.moments(4, 3)
    yield Sample(ids, table)
    yield Sample(ids, table, mode="sum", per_sample_weights=draw.constant(2, 2))
    yield Sample(torch.tensor([0, 2, 1]), table, torch.tensor([0, 1]))


@rule(F.embedding_bag, name="embedding_bag", fidelity=EXACT, samples=_bags, kind=Kind.LINEAR_MAP)
def embedding_bag(
    input: Tensor,  # (bags, n) of indices, or (all,) with offsets
    weight: Moments,  # (rows, width)
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Moments:
    """Var = sum of the rows' variances, by squared weights; over n**2 for a mean.

    Assumes: independent rows, and no row twice in one bag; exact then.

    Source: `sum`, `mean`.
    """
    if mode == "max" or max_norm is not None:
        raise NoRuleError("`embedding_bag` has a rule for sums and means, without `max_norm`.")

    def bag(table: Tensor, how: str, weights: Tensor | None) -> Tensor:
        options = {"include_last_offset": include_last_offset, "padding_idx": padding_idx}
        options |= {"mode": how, "per_sample_weights": weights}
        return F.embedding_bag(input, table, offsets, **options)  # pyright: ignore[reportArgumentType]

    mean = bag(weight.mean, mode, per_sample_weights)
    if mode == "sum":
        squares = (
            None if per_sample_weights is None else squared(per_sample_weights, weight.var.dtype)
        )
        return Moments(mean, bag(weight.var, "sum", squares))
    count = bag(torch.ones_like(weight.var), "sum", None).clamp(min=1)
    return Moments(mean, bag(weight.var, "sum", None) / count.square())
