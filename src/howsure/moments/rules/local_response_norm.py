"""Local response normalisation: division by a power of the squares in neighbouring channels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import APPROXIMATE, rule
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments


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
    level = k + alpha * _neighbours(power + var, size) / size
    pull = 2 * alpha * beta / (size * level)
    # The square of a sum, multiplied out: rounding may leave a small negative number.
    spread = var * (1 - 2 * pull * power)
    spread = (spread + pull.square() * power * _neighbours(power * var, size)).clamp(min=0)
    out = mean * level.pow(-beta)
    return Moments(out.to(input.mean.dtype), spread * level.pow(-2 * beta))


def _neighbours(x: Tensor, size: int) -> Tensor:
    """The sum over the `size` channels around each channel, as torch counts them."""
    flat = x.reshape(x.shape[0], 1, x.shape[1], -1)
    padded = F.pad(flat, (0, 0, size // 2, (size - 1) // 2))
    return F.avg_pool2d(padded, (size, 1), stride=1, divisor_override=1).reshape(x.shape)
