"""The standard normal distribution: density, distribution function, and one tail.

The only file that evaluates `phi`, `Phi` and their relatives. Notation: `a = mean / std`, t = |a|,
`m(a) = a Phi(a) + phi(a) = E[max(N(a, 1), 0)]`, and R(a) its variance.

What a unit Gaussian leaves beyond a distance t >= 0 comes from Mills' ratio, a continued fraction:
Phi(-t) / phi(t) = 1 / (t + 1 / (t + h)) with h = 2 / (t + 3 / (t + ...)) (Laplace 1805). One
function h gives everything, without cancellation: with w = t + h,
n = m(-t) = phi / (1 + t w), Phi(-t) = n w, R(-t) = n (h - n) and R(t) = 1 + n (h - n - 2 w).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from howsure.trees import is_tracing

_SQRT_2PI = math.sqrt(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

# Beyond, a tail that is added to something is taken as constant: R(-8) = 2e-17 counts for nothing.
# Squares of smaller ones, and products with a small variance, would leave the normal numbers of
# float32, where some processors are thirty times slower.
_NEGLIGIBLE, _NEGLIGIBLE_IN_FLOAT64 = 8.0, 10.0
# Where one tail is subtracted from another, the further one has to vanish: phi(13) is below the
# smallest normal float32.
_VANISHING = 13.0
# Nothing depends on a ratio beyond: further than any of these.
FURTHEST = 14.0

# h = N(t) / D(t), fitted to 50-digit values on 0 <= t <= 12.5: relative error 6e-7 in float32.
_NUMERATOR = (0.0130778016, 0.124058139, 0.538475817, 1.25331356)
_DENOMINATOR = (0.00654350497, 0.0618258642, 0.292676577, 0.772080711, 1.0)


def pdf(z: Tensor) -> Tensor:
    """The density phi(z)."""
    return torch.exp(-0.5 * z.square()) / _SQRT_2PI


def cdf(z: Tensor) -> Tensor:
    """The distribution function Phi(z), accurate in both tails."""
    return 0.5 * torch.special.erfc(-z * _SQRT_HALF)


class Standardised(NamedTuple):
    """A Gaussian in units of its own standard deviation."""

    ratio: Tensor
    """a = mean / std, 0 where the variance is 0."""
    std: Tensor
    """Standard deviation, 1 where the variance is 0, so that gradients stay finite."""
    certain: Tensor
    """Where the variance is 0."""


def standardise(mean: Tensor, var: Tensor) -> Standardised:
    """`mean / std` with the zero-variance elements replaced before the root and the division.

    A ratio beyond 1e18 is as certain as a variance of 0, and its square overflows float32.
    """
    certain = (var == 0) | (mean.abs() > 1e18 * var.sqrt().detach())
    std = torch.where(certain, 1.0, var).sqrt()
    return Standardised(torch.where(certain, 0.0, mean / std), std, certain)


def roots(var: Tensor) -> tuple[Tensor, Tensor]:
    """The standard deviation, exactly 0 where the variance is, and one that can divide.

    Where gradients are needed the variance is kept above the smallest normal number before the
    root, whose slope at 0 is infinite, and what was added is taken out by a factor.
    """
    smallest = torch.finfo(var.dtype).tiny
    if not torch.is_grad_enabled():
        std = var.sqrt()
        return std, std.clamp(min=smallest**0.5)
    positive = var.clamp(min=smallest)
    divisor = positive.sqrt()
    return divisor * (var / positive), divisor


def ratio(mean: Tensor, std: Tensor) -> Tensor:
    """mean / std; where gradients are needed, without the overflow that makes them 0 * inf.

    Beyond `FURTHEST` nothing depends on it any more.
    """
    if torch.is_grad_enabled():
        mean = torch.maximum(torch.minimum(mean, FURTHEST * std), -FURTHEST * std)
    return mean / std


class Tail(NamedTuple):
    """The tail beyond t = |a|, in the letters of this file."""

    mean: Tensor
    """n, the mean of max(N(-t, 1), 0)."""
    rest: Tensor
    """h - n: times n it is R(-t)."""
    reach: Tensor
    """w = t + h: times n it is Phi(-t)."""
    step: Tensor
    """1 where a > 0, 0 elsewhere; at 0 both ways give the same."""


def unit_tail(
    a: Tensor,  # overwritten where no graph needs it
    furthest: float | None = None,
) -> Tail:
    """The tail beyond |a|, constant beyond `furthest`: where it counts for nothing in a sum."""
    if furthest is None:
        furthest = _NEGLIGIBLE if a.dtype == torch.float32 else _NEGLIGIBLE_IN_FLOAT64
    if not (torch.is_grad_enabled() or is_tracing()) and a.dtype == torch.float32:
        return _overwriting(a, furthest)
    t = a.abs().clamp(max=furthest)
    h = _h_by_fraction(t) if t.dtype == torch.float32 else _h_exactly(t)
    w = t + h
    n = torch.exp(-0.5 * t * t) / (_SQRT_2PI * (1 + t * w))
    return Tail(n, h - n, w, (a.detach() > 0).to(n.dtype))


def in_deviations(difference: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """A difference in units of its standard deviation, and that, from its variance.

    Two paddings of -inf are equally large; their difference is not a number.
    """
    difference = difference.to(spread.dtype)
    if not (torch.is_grad_enabled() or is_tracing()):
        std = spread.sqrt()
        return torch.nan_to_num_(difference / std, nan=0.0), std
    std, divisor = roots(spread)
    # Compilers make slow code of `isnan` and `nan_to_num`.
    difference = torch.where(difference == difference, difference, 0.0)
    return ratio(difference, divisor), std


def plus_product(value: Tensor, left: Tensor, right: Tensor, factor: int = 1) -> Tensor:
    """value + factor left right; a value of one's own is overwritten where no graph needs it."""
    if torch.is_grad_enabled() or is_tracing():  # `vmap` has no rule for `addcmul_` (torch 2.13).
        product = left * right
        return value + product if factor == 1 else value + factor * product
    return value.addcmul_(left, right, value=factor)


def _h_by_fraction(t: Tensor) -> Tensor:
    """h as a quotient of polynomials: torch's `erfcx` runs one number at a time."""
    top, bottom = t * _NUMERATOR[0] + _NUMERATOR[1], t * _DENOMINATOR[0] + _DENOMINATOR[1]
    for coefficient in _NUMERATOR[2:]:
        top = top * t + coefficient
    for coefficient in _DENOMINATOR[2:]:
        bottom = bottom * t + coefficient
    return top / bottom


def _h_exactly(t: Tensor) -> Tensor:
    """h by the scaled complementary error function: r = Phi(-t) / phi(t), e = 1 - t r."""
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(t * _SQRT_HALF)
    e = (1 - t * mills).clamp(min=0)
    return (mills - t * e).clamp(min=0) / e


# The same numbers as tensors: from a Python number torch makes one in each call, which takes
# longer than the sum itself.
_TOP = tuple(torch.tensor(c, dtype=torch.float32) for c in _NUMERATOR)
_BOTTOM = tuple(torch.tensor(c, dtype=torch.float32) for c in _DENOMINATOR)
_ONE = torch.tensor(1.0, dtype=torch.float32)
# phi(t) = 2**(_LEVEL + _FALL t**2): torch's `exp2` takes a quarter of the time of its `exp`.
_LEVEL, _FALL = torch.tensor(-math.log2(_SQRT_2PI), dtype=torch.float32), -0.5 / math.log(2)


def _overwriting(a: Tensor, furthest: float) -> Tail:
    """The same with fewer temporaries."""
    step = torch.sign(a).clamp_(min=0)
    t = a.abs_().clamp_(max=furthest)
    h = _evaluated(t, _TOP).div_(_evaluated(t, _BOTTOM))
    w = t + h
    n = torch.addcmul(_LEVEL, t, t, value=_FALL).exp2_().div_(torch.addcmul(_ONE, t, w))
    return Tail(n, h.sub_(n), w, step)


def _evaluated(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    value = torch.addcmul(coefficients[1], t, coefficients[0])
    for coefficient in coefficients[2:]:
        value = torch.addcmul(coefficient, value, t)
    return value


class Rectified(NamedTuple):
    """Moments of max(N(a, 1), 0), of max(N(-a, 1), 0), and what they share."""

    mean: Tensor
    """m(a)."""
    mirrored_mean: Tensor
    """m(-a)."""
    var: Tensor
    """R(a) = Phi(a) - m(a) m(-a)."""
    probability: Tensor
    """Phi(a)."""


def rectify(a: Tensor) -> Rectified:
    """Moments of max(N(a, 1), 0) and of its mirror image; far tails vanish."""
    n, rest, reach, _ = unit_tail(a.clone(), _VANISHING)
    lower, upper = n * rest, 1 + n * (rest - 2 * reach)
    positive, beyond = a >= 0, n * reach
    return Rectified(
        mean=n + a.clamp(min=0),
        mirrored_mean=n + (-a).clamp(min=0),
        var=torch.where(positive, upper, lower),
        probability=torch.where(positive, 1 - beyond, beyond),
    )
