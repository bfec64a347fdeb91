"""Division by the size of the data, without subtracting the mean: of vectors, or of neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule, rule_of
from howsure.moments.rules.normalisation import affine, count, divide, last
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


def _images(draw: Draw) -> list[Sample]:
    image = draw.moments(2, 6, 3, 3, std=0.5)
    return [Sample(image, 3), Sample(image, 2, 0.5, 0.75, 2.0), Sample(image, size=5, alpha=0.1)]


@rule(
    F.local_response_norm,
    name="local_response_norm",
    fidelity=APPROXIMATE,
    samples=_images,
    error=0.15,
)
def local_response_norm(
    input: Moments,  # (batch, channels, *)
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Moments:
    """d = k + alpha / size sum_window (m**2 + v), E = m d**-beta, Var = J**2 v.

    J_ij = d_i**-beta (delta_ij - t_i m_i m_j) with t = 2 alpha beta / (size d).

    Assumes: independent elements, and a sum of squares near its expectation.

    Source: our own, as `layer_norm`.
    """
    mean, var = input.mean.to(input.var.dtype), input.var
    power = mean.square()
    level = k + alpha * _over_channels(power + var, size) / size
    pull = 2 * alpha * beta / (size * level)
    # The square of a sum, multiplied out: rounding may leave a small negative number.
    spread = var * (1 - 2 * pull * power)
    spread = (spread + pull.square() * power * _over_channels(power * var, size)).clamp(min=0)
    out = mean * level.pow(-beta)
    return Moments(out.to(input.mean.dtype), spread * level.pow(-2 * beta))


def _over_channels(x: Tensor, size: int) -> Tensor:
    """The sum over the `size` channels around each channel, as torch counts them."""
    flat = x.reshape(x.shape[0], 1, x.shape[1], -1)
    padded = F.pad(flat, (0, 0, size // 2, (size - 1) // 2))
    return F.avg_pool2d(padded, (size, 1), stride=1, divisor_override=1).reshape(x.shape)
