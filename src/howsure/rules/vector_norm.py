"""Lengths of vectors and distances between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.families import composite
from howsure.moments import Moments
from howsure.registry import APPROXIMATE, rule, spellings
from howsure.rules.arithmetic import mean_of
from howsure.rules.rectifiers import absolute
from howsure.samples import Draw, Sample


def root_of_squares(mean: Tensor, var: Tensor, dtype: torch.dtype) -> Moments:
    """Moments of sqrt(Q) for a sum of squares Q with these moments, taken as gamma distributed.

    With u = Var[Q] / E[Q]**2 and k = 1/u: E = sqrt(E[Q]) g, Var = E[Q] (1 - g**2), where
    g = Gamma(k + 1/2) / (sqrt(k) Gamma(k)) (Nakagami 1960). Exact for a central chi-square; right
    to first order in the noise for any mean.
    """
    certain = mean <= 0
    level = torch.where(certain, torch.ones_like(mean), mean)
    loss = _nakagami_loss(var / level.square())
    root = torch.where(certain, torch.zeros_like(mean), level.sqrt())
    return Moments((root * (1 - loss).sqrt()).to(dtype), root.square() * loss)


def _nakagami_loss(u: Tensor) -> Tensor:
    """1 - g(1/u)**2 for 0 <= u <= 2, without cancellation.

    A series in u up to 1/8 (error 1e-7); beyond, the recurrence of Gamma lifts k by 8 first.
    """
    k = 1 / u.clamp(min=0.125)
    ratio = torch.ones_like(k)
    for i in range(8):
        ratio = ratio * (k + i) / (k + i + 0.5)
    lifted = (k + 8) * (1 - _small_loss(1 / (k + 8)))
    return torch.where(u < 0.125, _small_loss(u.clamp(max=0.125)), 1 - ratio.square() * lifted / k)


def _small_loss(u: Tensor) -> Tensor:
    return u * (1 / 4 - u * (1 / 32 + u * (1 / 128 - u * (5 / 2048 + u * (23 / 8192)))))


def _lengths(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 6, std=0.5))
    yield Sample(draw.moments(3, 6), 2, 1)
    yield Sample(draw.moments(2, 3, 5, std=0.3), 2, dim=(1, 2), keepdim=True)
    yield Sample(draw.moments(3, 4), 1, -1)


@rule(
    torch.linalg.vector_norm,
    torch.ops.aten.linalg_vector_norm.default,
    name="vector_norm",
    samples=_lengths,
    fidelity=APPROXIMATE,
    error=0.05,
)
def vector_norm(
    input: Moments, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Moments:
    """The 2-norm as the root of a gamma variable; the 1-norm as a sum of `abs`.

    Assumes: independent elements. Exact for the 1-norm, and for the 2-norm of means 0 and equal
    variances.

    Source: Nakagami 1960; `abs`.
    """
    dtype = dtype or input.mean.dtype
    m, v = input.mean.to(input.var.dtype), input.var
    axes = tuple(range(m.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if ord == 2:
        level = (m.square() + v).sum(axes, keepdim=keepdim)
        spread = (4 * m.square() * v + 2 * v.square()).sum(axes, keepdim=keepdim)
        return root_of_squares(level, spread, dtype)
    if ord == 1:
        size = absolute(Moments(m, v))
        total = size.mean.sum(axes, keepdim=keepdim)
        return Moments(total.to(dtype), size.var.sum(axes, keepdim=keepdim))
    raise NoRuleError(
        f"There is no rule for the {ord}-norm. Use the 1-norm or the 2-norm in the model, or write "
        "it with `abs`, `pow`, `sum` and `amax`."
    )


def _norms(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 6, std=0.5))
    yield Sample(draw.moments(3, 6), 2, 1)
    yield Sample(draw.moments(3, 6), p=1, dim=-1, keepdim=True)


@rule(
    *spellings("norm", "frobenius_norm", inplace=False),
    torch.linalg.norm,
    torch.ops.aten.linalg_norm.default,
    name="norm",
    samples=_norms,
    fidelity=APPROXIMATE,
    error=0.05,
)
def norm(
    input: Moments,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
    **kwargs: Any,
) -> Moments:
    """As `vector_norm`; the Frobenius norm is the 2-norm of all elements.

    Assumes: see `vector_norm`.

    Source: `vector_norm`.
    """
    p = kwargs.get("ord", p)
    if isinstance(p, str) and p != "fro":
        raise NoRuleError(f"There is no rule for the {p} norm; use the Frobenius norm.")
    order = 2 if p in ("fro", None) else p
    return vector_norm(input, order, dim if dim != [] else None, keepdim, dtype=dtype)


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 6, std=0.5), draw.moments(3, 6, std=0.5))
    yield Sample(draw.moments(3, 6, std=0.5), draw.constant(6), keepdim=True)


@composite(
    *spellings("pairwise_distance", inplace=False),
    name="pairwise_distance",
    samples=_pairs,
    fidelity=APPROXIMATE,
    error=0.05,
)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """`vector_norm(x1 - x2 + eps)`.

    Assumes: different tensors are independent; see `vector_norm`.

    Source: `sub`, `vector_norm`.
    """
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _clouds(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3, 5, std=0.5), draw.constant(2, 4, 5))
    yield Sample(draw.moments(3, 5, std=0.5), draw.moments(4, 5, std=0.5), 1.0)


@composite(
    *spellings("cdist", inplace=False),
    name="cdist",
    samples=_clouds,
    fidelity=APPROXIMATE,
    error=0.05,
)
def cdist(
    x1: Tensor,  # (*batch, P, M)
    x2: Tensor,  # (*batch, R, M)
    p: float = 2.0,
    compute_mode: Any = None,
) -> Tensor:  # (*batch, P, R)
    """`vector_norm` of every difference; the distance of a point to itself is 0.

    Assumes: different points are independent; see `vector_norm`.

    Source: `sub`, `vector_norm`.
    """
    distance = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    if x1 is not x2:
        return distance
    size = x1.shape[-2]
    return distance.masked_fill(torch.eye(size, dtype=torch.bool, device=x1.device), 0.0)


def _angles(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.3), draw.moments(3, 16, std=0.3))
    yield Sample(draw.moments(2, 16, 3, std=0.5), draw.constant(2, 16, 3))
    yield Sample(draw.constant(16), draw.moments(3, 16, std=0.5), dim=-1)


@rule(
    *spellings("cosine_similarity", inplace=False),
    name="cosine_similarity",
    samples=_angles,
    fidelity=APPROXIMATE,
    error=0.15,
)
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
    return Moments(cosine.squeeze(dim).to(dtype), pulls.sum(dim) + both, innovation=lambda: both)


def _unit(x: Moments | Tensor, dim: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and variance of x over its expected length."""
    mean = mean_of(x).to(dtype)
    var = x.var if isinstance(x, Moments) else torch.zeros_like(mean)
    length = (mean.square() + var).sum(dim, keepdim=True).clamp(min=eps * eps)
    return mean / length.sqrt(), var / length
