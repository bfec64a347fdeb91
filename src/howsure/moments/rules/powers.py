"""Powers, roots and exponentials: exact where a Gaussian has these moments."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.families import bounded, in_float32, pointwise
from howsure.moments.numerics import roots
from howsure.moments.rule import APPROXIMATE, EXACT, Draw, Sample, Target, rule, rule_of
from howsure.moments.value import Moments
from howsure.trees import has_values


@pointwise("square")
def square(mean: Tensor, var: Tensor) -> Moments:
    """E = mean**2 + var, Var = 2 var**2 + 4 mean**2 var.

    Assumes: independent elements; exact.

    Source: moments of the noncentral chi-square distribution.
    """
    power = mean.square()
    return Moments(power + var, 4 * power * var + 2 * var.square())


def _natural_power(mean: Tensor, var: Tensor, exponent: int) -> Moments:
    """Moments of x**p: every term of the variance is a square.

    E[x^n] = mean E[x^(n-1)] + (n - 1) var E[x^(n-2)], and the k-th derivative of x^p is
    p! / (p - k)! x^(p - k). What the noise adds to mean**n is kept apart: without noise nothing.
    """
    raw, added = [torch.ones_like(mean), mean], [torch.zeros_like(mean)] * 2
    for n in range(2, exponent + 1):
        added.append(bounded(mean * added[-1] + bounded((n - 1) * var * raw[-2])))
        raw.append(bounded(bounded(mean.pow(n)) + added[-1]))
    spread, factor = torch.zeros_like(var), torch.ones_like(var)
    for k in range(1, exponent + 1):
        factor = bounded(factor * var)
        scale = math.perm(exponent, k) ** 2 / math.factorial(k)
        # One factor after the other: the square alone may overflow where the product does not.
        term = bounded(bounded(bounded(scale * factor) * raw[exponent - k]) * raw[exponent - k])
        spread = bounded(spread + term)
    return Moments(raw[exponent], spread)


def _moderate(draw: Draw) -> Iterable[Sample]:
    """Gaussians whose exponential has a tail that an oracle can resolve."""
    yield Sample(draw.moments(3, 5, std=0.7))
    yield Sample(draw.moments(4, mean=-1.0, std=0.2))


def _narrow(draw: Draw) -> Iterable[Sample]:
    """Gaussians well away from 0, where a log-normal distribution can stand in for them."""
    yield Sample(Moments(2 + draw.positive(3, 4), 0.02 * draw.positive(3, 4)))


# The mean of the positive half of N(0, 1).
_HALF_MEAN = 1 / math.sqrt(2 * math.pi)


def log_normal_of(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """The mean m of a log-normal variable with this variance, and l = log(1 + var / m**2).

    Noise that is wider than the mean would make l as large as one likes: m is at least what the
    positive half of the noise has. Without noise it is the mean, 0 included.
    """
    apart = torch.maximum(mean.abs(), _HALF_MEAN * roots(var)[0])
    divisor = torch.where(apart == 0, 1.0, apart)
    return torch.where(mean < 0, -apart, apart), torch.log1p(var / divisor / divisor)


def _powered(mean: Tensor, var: Tensor, exponent: float) -> Moments:
    """Moments of x**p for a log-normal x: m**p e^{(p^2 - p) l / 2}, E**2 expm1(p^2 l)."""
    mean, log_var = log_normal_of(mean, var)
    growth = bounded(torch.exp(0.5 * (exponent * exponent - exponent) * log_var))
    power = bounded(bounded(mean.pow(exponent)) * growth)
    return Moments(power, _scaled(power, torch.expm1(exponent * exponent * log_var)))


def _scaled(centre: Tensor, relative: Tensor) -> Tensor:
    """centre**2 times a relative variance; the square alone may overflow where this does not."""
    return bounded(bounded(bounded(relative) * centre) * centre)


@pointwise("reciprocal", fidelity=APPROXIMATE, samples=_narrow, error=0.05)
def reciprocal(mean: Tensor, var: Tensor) -> Moments:
    """E = (1 + k) / mean, Var = (1 + k)**2 k / mean**2 with k = var / mean**2.

    Assumes: independent elements, taken as log-normal: 1/x of a Gaussian has no finite moments.
    Good for |mean| / std above 5.

    Source: moments of the inverse of a log-normal variable.
    """
    inverse = bounded(1 / mean)
    relative = bounded(bounded(var * inverse) * inverse)
    centre = bounded(inverse * (1 + relative))
    return Moments(centre, _scaled(centre, relative))


def _log_normal(name: str, exponent: float) -> None:
    """Registers a fixed power of a positive variable."""

    @pointwise(name, fidelity=APPROXIMATE, samples=_narrow, error=0.05)
    def power(mean: Tensor, var: Tensor) -> Moments:
        """E = mean**p e^{(p**2 - p) l / 2}, Var = E**2 expm1(p**2 l), l = log(1 + var / mean**2).

        Assumes: independent elements, taken as log-normal; good for mean / std above 5.

        Source: moments of the log-normal distribution.
        """
        return _powered(mean, var, exponent)


_log_normal("sqrt", 0.5)
_log_normal("rsqrt", -0.5)


@pointwise("exp", samples=_moderate)
def exp(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{mean + var/2}, Var = E**2 (e^var - 1); cut off at the largest finite number.

    Assumes: independent elements; exact.

    Source: moments of the log-normal distribution.
    """
    return _exponential(mean, var, torch.exp)


@pointwise("exp2", samples=_moderate)
def exp2(mean: Tensor, var: Tensor) -> Moments:
    """As `exp(x log 2)`."""
    return _exponential(mean, var, torch.exp2, math.log(2))


def _exponential(mean: Tensor, var: Tensor, plain: Target, rate: float | Tensor = 1.0) -> Moments:
    """E = f(m + r v / 2), Var = f(m + r v)**2 (1 - e^{-r^2 v}) for f(x) = e^{r x}."""
    lift = var * rate
    centre = bounded(plain(mean + 0.5 * lift))
    return Moments(centre, _scaled(bounded(plain(mean + lift)), -torch.expm1(-lift * rate)))


@pointwise("expm1", samples=_moderate)
def expm1(mean: Tensor, var: Tensor) -> Moments:
    """As `exp(x) - 1`."""
    # expm1 keeps the digits of a small result that e^x - 1 loses.
    centre = bounded(torch.expm1(mean + 0.5 * var))
    return Moments(centre, _exponential(mean, var, torch.exp).var)


def _exponents(draw: Draw) -> Iterable[Sample]:
    for exponent in (0, 1, 2, 3, 4):
        yield Sample(draw.moments(3, 4, std=0.5), exponent)
    positive = Moments(2 + draw.positive(3, 4), 0.02 * draw.positive(3, 4))
    for exponent in (0.5, -1, -2.5, 4):
        yield Sample(positive, exponent)
    yield Sample(positive, torch.tensor(2.0))
    yield Sample(positive, torch.tensor([1.0, 2.0, 0.5, 2.0]))


@rule_of("pow", fidelity=APPROXIMATE, samples=_exponents, error=0.05, pointwise=True)
def power(input: Moments | Tensor | float, exponent: Moments | Tensor | float) -> Moments:
    """Var = sum_k v**k / k! E[d^k x^p]**2 for p = 0, 1, 2, ...; else the log-normal form of `sqrt`.

    Assumes: independent elements. Exact for natural exponents and for a constant base; others
    take x as log-normal, good for mean / std above 5.

    Source: Hermite expansion of a polynomial; moments of the log-normal distribution.
    """
    if isinstance(exponent, Moments) and not isinstance(input, Moments):
        return rpow(exponent, input)
    if isinstance(input, Moments) and isinstance(exponent, Tensor) and has_values(exponent):
        return _powers(input, exponent)
    if not isinstance(input, Moments) or not isinstance(exponent, (int, float)):
        raise NoRuleError(
            "A power has a rule for a constant exponent or a constant base; write other powers as "
            "`torch.exp(exponent * torch.log(base))`.",
            can_fall_back=True,
        )
    if exponent == 0:
        return Moments(torch.ones_like(input.mean), torch.zeros_like(input.var))
    if exponent == 1:
        return Moments(input.mean.clone(), input.var.clone())
    if exponent == 2:
        return square(input)
    if exponent > 0 and float(exponent).is_integer():
        return in_float32(lambda m, v: _natural_power(m, v, int(exponent)), input)
    if exponent == -1:
        return reciprocal(input)
    return in_float32(lambda m, v: _powered(m, v, float(exponent)), input)


def _powers(input: Moments, exponent: Tensor) -> Moments:
    """Moments of x**p where every element has an exponent of its own."""
    different = exponent.unique().tolist()
    if len(different) == 1:
        out = power(input, different[0])
        shape = torch.broadcast_shapes(out.mean.shape, exponent.shape)
        return Moments(out.mean.expand(shape), out.var.expand(shape))
    mean, var = torch.pow(input.mean, exponent), 0 * (input.var + exponent)
    for each in different:
        out, here = power(input, each), exponent == each
        mean, var = torch.where(here, out.mean, mean), torch.where(here, out.var, var)
    return Moments(mean, var)


@rule(
    torch.Tensor.__rpow__,
    name="rpow",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(3, 4), 2.0)],
    pointwise=True,
)
def rpow(self: Moments, other: float | Tensor) -> Moments:
    """As `exp(x log base)`, for a positive constant base."""
    base = torch.as_tensor(other, dtype=self.var.dtype, device=self.var.device)
    if has_values(base) and not bool((base > 0).all()):
        raise NoRuleError("`base ** x` has a rule for a positive constant base only.")
    known = base if isinstance(other, Tensor) else other
    out = in_float32(lambda m, v: _exponential(m, v, lambda u: known**u, base.log()), self)
    return Moments(out.mean, out.var.expand(out.mean.shape))
