"""Lengths of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule, rule_of
from howsure.moments.rules.closed_forms import absolute
from howsure.moments.value import Moments


def root_of_squares(mean: Tensor, relative_var: Tensor, dtype: torch.dtype) -> Moments:
    """Moments of sqrt(Q) for a sum of squares Q, taken as gamma distributed.

    With u = Var[Q] / E[Q]**2 and k = 1/u: E = sqrt(E[Q]) g, Var = E[Q] (1 - g**2), where
    g = Gamma(k + 1/2) / (sqrt(k) Gamma(k)) (Nakagami 1960). Exact for a central chi-square; right
    to first order in the noise for any mean.
    """
    loss = _nakagami_loss(relative_var)
    root = torch.where(_nothing(mean), torch.zeros_like(mean), divisible(mean).sqrt())
    return Moments((root * (1 - loss).sqrt()).to(dtype), root.square() * loss)


def _nothing(mean: Tensor) -> Tensor:
    """Where a sum of squares is 0, or so small that a quotient by it has no digits."""
    return mean < torch.finfo(mean.dtype).tiny


def divisible(mean: Tensor) -> Tensor:
    """A sum of squares to divide by: 1 where it is 0."""
    return torch.where(_nothing(mean), torch.ones_like(mean), mean)


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
    input: Moments,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
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
        level = (m.square() + v).sum(axes, keepdim=True)
        # Shares of the whole: their squares do not underflow.
        power, noise = m.square() / divisible(level), v / divisible(level)
        relative = (4 * power * noise + 2 * noise.square()).sum(axes, keepdim=keepdim)
        return root_of_squares(level if keepdim else level.squeeze(axes), relative, dtype)
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


@rule_of(
    "norm",
    "frobenius_norm",
    also=(
        torch.linalg.norm,
        torch.ops.aten.linalg_norm.default,
    ),
    inplace=False,
    samples=_norms,
    fidelity=APPROXIMATE,
    error=0.05,
)
def norm(
    input: Moments,
    p: object = "fro",
    dim: object = None,
    keepdim: bool = False,
    out: object = None,
    dtype: torch.dtype | None = None,
    **kwargs: object,
) -> Moments:
    """As `vector_norm`; the Frobenius norm is the 2-norm of all elements."""
    p = kwargs.get("ord", p)
    if isinstance(p, str) and p != "fro":
        raise NoRuleError(f"There is no rule for the {p} norm; use the Frobenius norm.")
    order = 2 if p in ("fro", None) else p
    return vector_norm(input, order, dim if dim != [] else None, keepdim, dtype=dtype)
