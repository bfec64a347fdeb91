"""Division by a root mean square or a length, without subtracting the mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.rule import APPROXIMATE, rule, rule_of
from howsure.moments.rules.normalisation import affine, count, divide, last
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments


def _no_shift(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.3), (16,), draw.constant(16))
    yield Sample(draw.moments(2, 3, 4, 6, std=0.5), [4, 6], eps=1e-3)
    yield Sample(draw.moments(2, 32, mean=2.0), (32,))


@rule_of("rms_norm", fidelity=APPROXIMATE, samples=_no_shift, error=0.1, normalises=True)
def rms_norm(
    input: Moments,  # (*batch, *normalized_shape)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,  # normalized_shape
    eps: float | None = None,
) -> Moments:
    """s**2 = mean(m**2 + v) + eps, E = m / s, Var = J**2 v, J_ij = (delta_ij - y_i y_j / n) / s.

    Assumes: see `layer_norm`.

    Source: `layer_norm`, without the subtraction of the mean.
    """
    mean, var, axes = input.mean.to(input.var.dtype), input.var, last(normalized_shape)
    eps = torch.finfo(input.mean.dtype).eps if eps is None else eps
    scale = ((mean.square() + var).mean(axes, keepdim=True) + eps).sqrt()
    normal = divide(mean, var, scale, axes, 1 / count(mean, axes), False)
    return affine(normal, weight, None, input)


def _vectors(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 16, std=0.3))
    yield Sample(draw.moments(2, 3, 24, std=0.5), dim=-1)
    yield Sample(draw.moments(2, 12, 2, mean=2.0, std=0.5), 2.0, 1)


@rule(F.normalize, name="normalize", fidelity=APPROXIMATE, samples=_vectors, error=0.1)
def normalize(
    input: Moments,
    p: float = 2.0,
    dim: int | Sequence[int] = 1,
    eps: float = 1e-12,
    out: object = None,
) -> Moments:
    """q = sum(m**2 + v), E = m / sqrt(q), Var = J**2 v, J_ij = (delta_ij - y_i y_j) / sqrt(q).

    Assumes: see `layer_norm`; unit length in the 2-norm.

    Source: `layer_norm`.
    """
    if p != 2:
        raise NoRuleError(
            f"`normalize` has a rule for p = 2 and was called with p = {p}. Divide by "
            "`x.abs().sum(dim, keepdim=True)` or the like in the model."
        )
    mean, var = input.mean.to(input.var.dtype), input.var
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    length = (mean.square() + var).sum(axes, keepdim=True)
    certain = length <= eps * eps
    # Below eps torch divides by eps, a constant, and the length is left out of the derivative.
    scale = torch.where(certain, torch.ones_like(length), length).sqrt()
    unit = divide(mean, var, scale, axes, 1.0, False)
    short = Moments(mean / eps, var / eps**2) if eps else unit
    return Moments(
        torch.where(certain, short.mean, unit.mean).to(input.mean.dtype),
        torch.where(certain, short.var, unit.var),
    )
