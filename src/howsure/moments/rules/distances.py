"""Distances and angles between vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import composite_of
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule_of
from howsure.moments.value import Moments, mean_of


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 6, std=0.5), draw.moments(3, 6, std=0.5))
    yield Sample(draw.moments(3, 6, std=0.5), draw.constant(6), keepdim=True)


@composite_of("pairwise_distance", inplace=False, samples=_pairs, fidelity=APPROXIMATE, error=0.05)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """As `vector_norm` of x1 - x2 + eps."""
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _clouds(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3, 5, std=0.5), draw.constant(2, 4, 5))
    yield Sample(draw.moments(3, 5, std=0.5), draw.moments(4, 5, std=0.5), 1.0)


@composite_of("cdist", inplace=False, samples=_clouds, fidelity=APPROXIMATE, error=0.05)
def cdist(
    x1: Tensor,  # (*batch, P, M)
    x2: Tensor,  # (*batch, R, M)
    p: float = 2.0,
    compute_mode: object = None,
) -> Tensor:  # (*batch, P, R)
    """As `vector_norm` of every difference; the distance of a point to itself is 0."""
    distance = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    if x1 is not x2:
        return distance
    size = x1.shape[-2]
    return distance.masked_fill(torch.eye(size, dtype=torch.bool, device=x1.device), 0.0)


def _angles(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.3), draw.moments(3, 16, std=0.3))
    yield Sample(draw.moments(2, 16, 3, std=0.5), draw.constant(2, 16, 3))
    yield Sample(draw.constant(16), draw.moments(3, 16, std=0.5), dim=-1)


@rule_of("cosine_similarity", inplace=False, samples=_angles, fidelity=APPROXIMATE, error=0.15)
def cosine_similarity(
    x1: Moments | Tensor, x2: Moments | Tensor, dim: int = 1, eps: float = 1e-8
) -> Moments:
    """c = y1 . y2 with y = m / sqrt(q), q = sum(m**2 + v); Var = J1**2 v1 + J2**2 v2 + cross.

    J1 = (y2 - c y1) / sqrt(q1), J2 likewise, cross = sum v1 v2 / (q1 q2).

    Assumes: independent elements, and lengths near their expectation. `x` with itself gives 1.

    Source: our own, as `normalize`.
    """
    dtype = next(x.var.dtype for x in (x1, x2) if isinstance(x, Moments))
    (y1, v1), (y2, v2) = (_unit(x, dim, eps, dtype) for x in (x1, x2))
    cosine = (y1 * y2).sum(dim, keepdim=True)
    if x1 is x2:
        return Moments(torch.ones_like(cosine.squeeze(dim)), torch.zeros_like(cosine.squeeze(dim)))
    both = (v1 * v2).sum(dim)
    pulls = v1 * (y2 - cosine * y1).square() + v2 * (y1 - cosine * y2).square()
    dtype = torch.promote_types(mean_of(x1).dtype, mean_of(x2).dtype)
    return Moments(cosine.squeeze(dim).to(dtype), pulls.sum(dim) + both)


def _unit(x: Moments | Tensor, dim: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and variance of x over its expected length."""
    mean = mean_of(x).to(dtype)
    var = x.var if isinstance(x, Moments) else torch.zeros_like(mean)
    length = (mean.square() + var).sum(dim, keepdim=True).clamp(min=eps * eps)
    return mean / length.sqrt(), var / length


@composite_of(
    "hypot",
    samples=lambda draw: [Sample(draw.moments(3, 4), draw.moments(4))],
    fidelity=APPROXIMATE,
    error=0.1,
)
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """As `vector_norm` of the pair."""
    return torch.linalg.vector_norm(torch.stack(torch.broadcast_tensors(input, other)), 2, 0)
