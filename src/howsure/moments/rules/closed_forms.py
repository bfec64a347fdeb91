"""Nonlinear functions whose moments are known: rectifiers, clamps, powers, exponentials, maxima.

Closed forms are exact and fast, and written so that they never subtract two nearly equal numbers.
Notation as in `howsure.moments.numerics`: a = mean / std, m(a) = a Phi(a) + phi(a) is the mean of
max(N(a, 1), 0), and R(a) = Phi(a) - m(a) m(-a) its variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import bounded, in_float32, pointwise
from howsure.moments.numerics import (
    FURTHEST,
    cdf,
    in_blocks,
    in_deviations,
    pdf,
    plus_product,
    ratio,
    rectify,
    roots,
    unit_tail,
)
from howsure.moments.rule import (
    APPROXIMATE,
    Rule,
    Sample,
    Target,
    constant,
    narrow,
    normal,
    one_of_each_shape,
    operands,
    positive,
    rule,
    sample,
)
from howsure.moments.value import Moments, Refused, certain
from howsure.trees import has_values, is_tracing


# Rectifiers: Cov(max(x, 0), max(-x, 0)) = -var m(a) m(-a) (Frey & Hinton 1999).
@pointwise(F.relu, "relu")
def relu(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """E = std m(a), Var = var [Phi(a) - m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999; Loquercio et al. 2020, Eq. 6 and 7.
    """
    return _leaky(mean, var, 0.0)


def _leaky(mean: Tensor, var: Tensor, slope: float | Tensor) -> Moments:
    """Moments of `x if x > 0 else slope x`."""
    inputs = (mean, var.expand(mean.shape))
    if isinstance(slope, Tensor):
        return Moments(*in_blocks(_leaky_block, *inputs, slope.expand(mean.shape)))
    return Moments(*in_blocks(partial(_leaky_block, slope=slope), *inputs))


def _leaky_block(mean: Tensor, var: Tensor, slope: float | Tensor) -> tuple[Tensor, Tensor]:
    """E = f(mean) + (1 - slope) std n, Var = var [R(a) + slope**2 R(-a) + 2 slope n (t + n)].

    n = m(-|a|) is what the noise lifts the mean by.
    """
    std, divisor = roots(var)
    n, rest, reach, step = unit_tail(ratio(mean, divisor))
    if isinstance(slope, float) and slope == 0.0:
        unit_var = plus_product(step, n, plus_product(rest, step, reach, -2))
        return plus_product(mean.clamp(min=0), std, n), var * unit_var
    square = slope * slope
    share = square + (1 - square) * step  # slope**2 below 0, 1 above
    inner = (1 + square) * rest - 2 * reach * share + 2 * slope * (reach - rest)
    plain = torch.maximum(mean, torch.zeros_like(mean)) + slope * mean.clamp(max=0)
    unit_var = (share + n * inner).clamp(min=0)
    return plain + (1 - slope) * (std * n), var * unit_var


@pointwise(
    F.leaky_relu,
    "leaky_relu",
    samples=[
        *one_of_each_shape,
        Sample(normal(3, 4), 0.2),
        Sample(normal(3, 4), negative_slope=-0.5),
    ],
)
def leaky_relu(
    mean: Tensor, var: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> Moments:
    """E = std [m(a) - k m(-a)], Var = var [R(a) + k**2 R(-a) + 2 k m(a) m(-a)], slope k.

    Assumes: independent elements; exact for any slope.

    Source: Frey & Hinton 1999.
    """
    return _leaky(mean, var, float(negative_slope))


@pointwise("abs", "absolute")
def absolute(mean: Tensor, var: Tensor) -> Moments:
    """E = std [m(a) + m(-a)], Var = var [1 - 4 m(a) m(-a)].

    Assumes: independent elements; exact.

    Source: folded normal distribution, Leone, Nelson & Nottingham 1961.
    """
    return _leaky(mean, var, -1.0)


@pointwise(
    "prelu",
    samples=[Sample(normal(2, 3, 4), constant(3)), Sample(normal(5), positive(1))],
)
def prelu(
    mean: Tensor,  # (batch, channels, *)
    var: Tensor,
    weight: Tensor,  # (channels,) or (1,)
) -> Moments:
    """As `leaky_relu`, with one slope for each channel."""
    trailing = max(mean.dim() - 2, 0) if weight.numel() > 1 else 0
    return _leaky(mean, var, weight.to(var.dtype).reshape(weight.shape + (1,) * trailing))


@rule(F.rrelu, "rrelu", samples=[Sample(normal(7)), Sample(normal(3, 4), 0.1, 0.7)])
def rrelu(
    input: Moments,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: object = False,
) -> Moments:
    """As `leaky_relu` with the slope (lower + upper) / 2, in eval mode."""
    if training:
        raise NoRuleError("`rrelu` in train mode draws random slopes. Call `model.eval()`.")
    return leaky_relu(input, (lower + upper) / 2)


# Clamps: values cut off at one end or at both.
@pointwise(
    "clamp",
    "clip",
    samples=[
        Sample(normal(3, 4), -0.5, 1.0),
        Sample(normal(3, 4), min=0.2),
        Sample(normal(3, 4), max=0.3),
        Sample(normal(3, 4), min=positive(4, scale=-1.0), max=positive(3, 1)),
    ],
)
def clamp(
    mean: Tensor, var: Tensor, min: float | Tensor | None = None, max: float | Tensor | None = None
) -> Moments:
    """E = clamp(mean) + std [n(a) - n(b)], Var = var [R(a) - Phi(b) - m(b) m(-b) + 2 m(-a) m(b)].

    a = (mean - lo) / std and b = (mean - hi) / std, mirrored so that the mean is in the lower
    half; n(a) = m(-|a|). With one limit only it is a shifted rectifier.

    Assumes: independent elements and constant limits; exact.

    Source: Cov(relu(x - p), relu(x - q)) = var [Phi(b_q) - m(-b_p) m(b_q)] for p <= q.
    """
    if isinstance(min, Moments) or isinstance(max, Moments):
        raise NoRuleError(
            "`clamp` has a rule for constant limits; use `torch.maximum`.", can_fall_back=True
        )
    return _clamp(mean, var, min, max)


def _clamp(
    mean: Tensor, var: Tensor, low: float | Tensor | None, high: float | Tensor | None
) -> Moments:
    shift, out = _cut(mean, var, low, high)
    # Of one type: torch's export to ONNX fails on a whole number beside a fraction.
    low, high = (float(limit) if isinstance(limit, int) else limit for limit in (low, high))
    return Moments(mean.clamp(low, high) + shift, out)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _cut(
    mean: Tensor, var: Tensor, low: float | Tensor | None, high: float | Tensor | None
) -> tuple[Tensor, Tensor]:
    """How far the noise moves the mean of x cut off at both ends, and the variance."""
    lowest, highest = (
        torch.as_tensor(end if limit is None else limit, dtype=mean.dtype, device=mean.device)
        for limit, end in ((low, -math.inf), (high, math.inf))
    )
    lowest = torch.minimum(lowest, highest)  # as torch has it: the upper limit wins
    std, divisor = roots(var)
    below, above = mean - lowest, highest - mean
    near, far = torch.minimum(below, above), torch.maximum(below, above)
    # Beyond that nothing depends on the distance any more, be it infinite.
    a, b = (ratio(side, divisor).clamp(-FURTHEST, FURTHEST) for side in (near, -far))
    lower, upper = rectify(a), rectify(b)
    lift = std * (lower.mean - a.clamp(min=0) - upper.mean + b.clamp(min=0))
    unit_var = (
        lower.var
        - upper.probability
        - upper.mean * upper.mirrored_mean
        + 2 * lower.mirrored_mean * upper.mean
    )
    width = ratio((highest - lowest).expand(mean.shape), divisor).clamp(max=2 * FURTHEST)
    unit_var = torch.where(width < _NARROW, _narrow_unit_var(a, width), unit_var).clamp(min=0)
    return torch.where(below <= above, lift, -lift), var * unit_var


# Below this window, in standard deviations, the closed form loses its digits in float32.
_NARROW = 0.1


def _narrow_unit_var(a: Tensor, width: Tensor) -> Tensor:
    """Variance over var when the window is narrow, by Taylor's series of Phi.

    In units of the window w about its middle c: mean q = Phi(c) - w**2 c phi(c) / 24 and variance
    q (1 - q) - w phi(c) / 6 [1 + w**2 (c**2 - 1) / 40], with an error of order w**4.
    """
    middle, square = a - width / 2, width.square()
    density = pdf(middle)
    q = cdf(middle) - square * middle * density / 24
    curvature = density * width / 6 * (1 + square * (middle.square() - 1) / 40)
    return square * (q * (1 - q) - curvature)


@pointwise(F.hardtanh, "hardtanh", samples=[*one_of_each_shape, Sample(normal(3, 4), -0.2, 0.7)])
def hardtanh(
    mean: Tensor, var: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Moments:
    """As `clamp(x, min_val, max_val)`."""
    return _clamp(mean, var, min_val, max_val)


@pointwise(F.relu6, "relu6")
def relu6(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `clamp(x, 0, 6)`."""
    return _clamp(mean, var, 0.0, 6.0)


@pointwise(F.hardsigmoid, "hardsigmoid")
def hardsigmoid(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `clamp(x, -3, 3) / 6 + 1/2`."""
    shift, out = _cut(mean, var, -3.0, 3.0)
    return Moments(F.hardsigmoid(mean) + shift / 6, out / 36)


@pointwise("clamp_min", samples=sample((3, 4), 0.1))
def clamp_min(mean: Tensor, var: Tensor, min: float | Tensor) -> Moments:
    """As `clamp(x, min=min)`."""
    return _clamp(mean, var, min, None)


@pointwise("clamp_max", samples=sample((3, 4), 0.1))
def clamp_max(mean: Tensor, var: Tensor, max: float | Tensor) -> Moments:
    """As `clamp(x, max=max)`."""
    return _clamp(mean, var, None, max)


# Shrinkage and thresholds: small values become a constant.
_LAMBDAS = [*one_of_each_shape, Sample(normal(3, 4), 0.2)]


def _difference(upper: Moments, lower: Moments) -> Moments:
    """Moments of U - L for U, L >= 0 of which one is always 0: Cov(U, L) = -E[U] E[L]."""
    cross = 2 * upper.mean * lower.mean
    return Moments(upper.mean - lower.mean, upper.var + lower.var + cross)


def _cut_off(mean: Tensor, var: Tensor, limit: float, value: float) -> Moments:
    """Moments of `x if x > limit else value`.

    y = value + (x - limit)+ + jump [x > limit] with jump = limit - value.
    """
    std, divisor = roots(var)
    over, jump = mean > limit, limit - value
    a = ratio(mean - limit, divisor).clamp(-FURTHEST, FURTHEST)
    unit, below = rectify(a), cdf(-a)
    lift = std * (unit.mean - a.clamp(min=0))
    # A mean at the limit is not above it, unless there is noise.
    crossing = torch.where(var == 0, 0.0, torch.where(over, -below, unit.probability))
    excess = (mean - limit).clamp(min=0) + lift
    spread = jump * jump * unit.probability * below + 2 * jump * excess * below
    # A jump downwards subtracts; the sum is a variance and negative by rounding only.
    spread = (var * unit.var + torch.where(var == 0, 0.0, spread)).clamp(min=0)
    return Moments(torch.where(over, mean, value) + lift + jump * crossing, spread)


@pointwise("softshrink", samples=_LAMBDAS)
def softshrink(mean: Tensor, var: Tensor, lambd: float = 0.5) -> Moments:
    """E = std [m(a) - m(b)], Var = var [R(a) + R(b) + 2 m(a) m(b)].

    a = (mean - lambd) / std and b = (-mean - lambd) / std.

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999, for the two rectifiers of which one is always 0.
    """
    upper, lower = (_cut_off(side - lambd, var, 0.0, 0.0) for side in (mean, -mean))
    return _difference(upper, lower)


# What the oracle's grid sees of a step.
_STEP_ERROR = 1e-3


@pointwise(
    F.threshold,
    "threshold",
    samples=[
        Sample(normal(3, 4), 0.2, -1.0),
        Sample(normal(3, 4), 0.0, 0.0),
        Sample(normal(3, 4), -0.5, 0.7),
    ],
    error=_STEP_ERROR,
)
def threshold(
    mean: Tensor, var: Tensor, threshold: float, value: float, inplace: bool = False
) -> Moments:
    """Var = var R(a) + d**2 Phi(a) Phi(-a) + 2 d std m(a) Phi(-a), d = threshold - value.

    E = value + std m(a) + d Phi(a) with a = (mean - threshold) / std.

    Assumes: independent elements; exact.

    Source: Frey & Hinton 1999, with a step of height d.
    """
    return _cut_off(mean, var, threshold, value)


@pointwise("hardshrink", samples=_LAMBDAS, error=_STEP_ERROR)
def hardshrink(mean: Tensor, var: Tensor, lambd: float = 0.5) -> Moments:
    """Var = Var[U] + Var[L] + 2 E[U] E[L], U and L as `threshold(x, lambd, 0)` of x and -x.

    Assumes: independent elements; exact.

    Source: `threshold`.
    """
    return _difference(_cut_off(mean, var, lambd, 0.0), _cut_off(-mean, var, lambd, 0.0))


# Powers, roots and logarithms: exact for natural exponents, else those of a log-normal variable.
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
        spread = bounded(spread + _scale_var(raw[exponent - k], scale * factor))
    return Moments(raw[exponent], spread)


def _scale_var(center: Tensor, relative: Tensor) -> Tensor:
    """center**2 times a relative variance; the square alone may overflow where this does not."""
    return bounded(bounded(bounded(relative) * center) * center)


# Gaussians well away from 0, where a log-normal distribution can stand in for them.
_AWAY = narrow(2, 1, 0.02)
_LOG_NORMAL: dict[str, Any] = {"fidelity": APPROXIMATE, "error": 0.05}
_LOG_NORMAL["samples"] = [Sample(_AWAY)]
# The mean of the positive half of N(0, 1).
_HALF_MEAN = 1 / math.sqrt(2 * math.pi)


def _log_normal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """The mean m of a log-normal variable with this variance, and l = log(1 + var / m**2).

    Noise that is wider than the mean would make l as large as one likes: m is at least what the
    positive half of the noise has. Without noise it is the mean, 0 included.
    """
    apart = torch.maximum(mean.abs(), _HALF_MEAN * roots(var)[0])
    divisor = torch.where(apart == 0, 1.0, apart)
    return torch.where(mean < 0, -apart, apart), torch.log1p(var / divisor / divisor)


def _log_normal_power(mean: Tensor, var: Tensor, exponent: float) -> Moments:
    """Moments of x**p for a log-normal x: m**p e^{(p^2 - p) l / 2}, E**2 expm1(p^2 l)."""
    mean, log_var = _log_normal(mean, var)
    growth = bounded(torch.exp(0.5 * (exponent * exponent - exponent) * log_var))
    power = bounded(bounded(mean.pow(exponent)) * growth)
    return Moments(power, _scale_var(power, torch.expm1(exponent * exponent * log_var)))


@pointwise("reciprocal", **_LOG_NORMAL)
def reciprocal(mean: Tensor, var: Tensor) -> Moments:
    """E = (1 + k) / mean, Var = (1 + k)**2 k / mean**2 with k = var / mean**2.

    Assumes: independent elements, taken as log-normal: 1/x of a Gaussian has no finite moments.
    Good for |mean| / std above 5.

    Source: moments of the inverse of a log-normal variable.
    """
    inverse = bounded(1 / mean)
    relative = bounded(bounded(var * inverse) * inverse)
    center = bounded(inverse * (1 + relative))
    return Moments(center, _scale_var(center, relative))


def _register_root(name: str, exponent: float) -> None:
    @pointwise(name, **_LOG_NORMAL)
    def root(mean: Tensor, var: Tensor) -> Moments:
        """E = mean**p e^{(p**2 - p) l / 2}, Var = E**2 expm1(p**2 l), l = log(1 + var / mean**2).

        Assumes: independent elements, taken as log-normal; good for mean / std above 5.

        Source: moments of the log-normal distribution.
        """
        return _log_normal_power(mean, var, exponent)


_register_root("sqrt", 0.5)
_register_root("rsqrt", -0.5)


def _register_logarithm(name: str, shift: float = 0.0, base: float = math.e) -> None:
    @pointwise(name, **_LOG_NORMAL)
    def logarithm(mean: Tensor, var: Tensor) -> Moments:
        """E = log mean - l / 2, Var = l, with l = log(1 + var / mean**2), over the base's log.

        Assumes: independent elements, taken as log-normal; good for mean / std above 5.

        Source: moments of the log-normal distribution.
        """
        center, log_var = _log_normal(mean + shift, var)
        # log1p keeps the digits of a small mean that 1 + mean loses.
        plain = torch.log1p(mean) if shift else torch.log(mean)
        value = torch.where(center == mean + shift, plain, torch.log(center))
        unit = math.log(base)
        return Moments((value - 0.5 * log_var) / unit, log_var / unit**2)


_register_logarithm("log")
_register_logarithm("log1p", shift=1.0)
_register_logarithm("log2", base=2.0)
_register_logarithm("log10", base=10.0)


_DIFFERENT = torch.tensor([1.0, 2.0, 0.5, 2.0])
_EXPONENTS = [
    *(Sample(normal(3, 4, std=0.5), exponent) for exponent in (0, 1, 2, 3, 4)),
    *(Sample(_AWAY, exponent) for exponent in (0.5, -1, -2.5, 4, torch.tensor(2.0), _DIFFERENT)),
]


@rule("pow", fidelity=APPROXIMATE, samples=_EXPONENTS, error=0.05, pointwise=True)
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
        return in_float32(partial(_natural_power, exponent=int(exponent)), input)
    if exponent == -1:
        return reciprocal(input)
    return in_float32(partial(_log_normal_power, exponent=float(exponent)), input)


def _powers(input: Moments, exponent: Tensor) -> Moments:
    """Moments of x**p where every element has an exponent of its own."""
    different = exponent.unique().tolist()
    if len(different) == 1:
        out = power(input, different[0])
        shape = torch.broadcast_shapes(out.mean.shape, exponent.shape)
        return Moments(out.mean.expand(shape), out.var.expand(shape))
    mean, var = torch.pow(input.mean, exponent), 0 * (input.var + exponent)
    for value in different:
        out, here = power(input, value), exponent == value
        mean, var = torch.where(here, out.mean, mean), torch.where(here, out.var, var)
    return Moments(mean, var)


# Exponentials.
# Gaussians whose exponential has a tail that an oracle can resolve.
_MODERATE = [Sample(normal(3, 5, std=0.7)), Sample(normal(4, mean=-1.0, std=0.2))]


@pointwise("exp", samples=_MODERATE)
def exp(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{mean + var/2}, Var = E**2 (e^var - 1); cut off at the largest finite number.

    Assumes: independent elements; exact.

    Source: moments of the log-normal distribution.
    """
    return _exponential(mean, var, torch.exp)


def _exponential(mean: Tensor, var: Tensor, plain: Target, rate: float | Tensor = 1.0) -> Moments:
    """E = f(m + r v / 2), Var = f(m + r v)**2 (1 - e^{-r^2 v}) for f(x) = e^{r x}."""
    lift = var * rate
    center = bounded(plain(mean + 0.5 * lift))
    return Moments(center, _scale_var(bounded(plain(mean + lift)), -torch.expm1(-lift * rate)))


@pointwise("exp2", samples=_MODERATE)
def exp2(mean: Tensor, var: Tensor) -> Moments:
    """As `exp(x log 2)`."""
    return _exponential(mean, var, torch.exp2, math.log(2))


@pointwise("expm1", samples=_MODERATE)
def expm1(mean: Tensor, var: Tensor) -> Moments:
    """As `exp(x) - 1`."""
    # expm1 keeps the digits of a small result that e^x - 1 loses.
    center = bounded(torch.expm1(mean + 0.5 * var))
    return Moments(center, _exponential(mean, var, torch.exp).var)


@pointwise(torch.Tensor.__rpow__, name="rpow", samples=sample((3, 4), 2.0))
def rpow(mean: Tensor, var: Tensor, other: float | Tensor) -> Moments:
    """As `exp(x log base)`, for a positive constant base."""
    base = torch.as_tensor(other, dtype=var.dtype, device=var.device)
    if has_values(base) and not bool((base > 0).all()):
        raise NoRuleError("`base ** x` has a rule for a positive constant base only.")
    factor = base if isinstance(other, Tensor) else other
    return _exponential(mean, var, lambda u: factor**u, base.log())


# The larger and the smaller of Gaussians.
_SAME = normal(3, 4)
_PAIRS = [
    Sample(normal(3, 4), normal(3, 4)),
    Sample(normal(3, 4), constant(4)),
    Sample(constant(3, 1), normal(4)),
    Sample(_SAME, _SAME),
]


@rule("maximum", "fmax", samples=_PAIRS)
def maximum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = max(m1, m2) + t m(-|a|), Var = v1 R(a) + v2 R(-a), t**2 = v1 + v2, a = (m1 - m2) / t.

    R(a) = Phi(a) - m(a) m(-a): Clark's variance as a sum of positive terms.

    Assumes: the two are independent; exact then.

    Source: Clark 1961, Eq. 2 to 4, rearranged.
    """
    if input is other:
        assert isinstance(input, Moments)
        return Moments(input.mean, input.var)
    return larger(_moments(input, other), _moments(other, input))


def _moments(operand: Moments | Tensor, like: Moments | Tensor) -> Moments:
    if isinstance(operand, Moments):
        return operand
    assert isinstance(like, Moments)
    return certain(torch.as_tensor(operand).to(like.mean))


def larger(first: Moments, second: Moments) -> Moments:
    """Moments of the larger of two independent Gaussians (Clark 1961)."""
    inputs = torch.broadcast_tensors(first.mean, first.var, second.mean, second.var)
    return Moments(*in_blocks(larger_of_two, *inputs))


def larger_of_two(
    mean1: Tensor, var1: Tensor, mean2: Tensor, var2: Tensor
) -> tuple[Tensor, Tensor]:
    """E = max(m1, m2) + t n, Var = v' + n [(h - n) t**2 - 2 w v'], v' that of the larger mean.

    n = m(-|a|) is what the noise adds to the larger mean. Elementwise.
    """
    spread = var1 + var2
    a, std = in_deviations(mean1 - mean2, spread)
    n, rest, reach, step = unit_tail(a)
    top = torch.maximum(mean1, mean2)
    # Compilers make slow code of `lerp`, torch of `where`.
    leading = torch.where(step > 0, var1, var2) if is_tracing() else var2.lerp(var1, step)
    inner = plus_product(rest * spread, reach, leading, -2)
    lifted = plus_product(top, std, n) if top.dtype == n.dtype else top + (std * n).to(top.dtype)
    return lifted, plus_product(leading, n, inner)


def _negate(moments: Moments) -> Moments:
    return Moments(-moments.mean, moments.var)


@rule("minimum", "fmin", samples=_PAIRS)
def minimum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """As `-maximum(-x, -y)`."""
    if input is other:
        return maximum(input, other)
    out = larger(_negate(_moments(input, other)), _negate(_moments(other, input)))
    return _negate(out)


_DIMENSIONS = [
    Sample(normal(3, 4), 1),
    Sample(normal(2, 3, 4), (1, 2), keepdim=True),
    Sample(normal(2, 9, 2), dim=1),
]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


@rule("amax", fidelity=APPROXIMATE, samples=_DIMENSIONS, error=0.01)
def amax(input: Moments, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """E = hi - I0, Var = 2 I1 - I0**2: integrals of F(x) = prod_j Phi((x - m_j) / s_j).

    I0 = int F, I1 = int (hi - x) F over [max(m - 5 s), hi = max(m + 5 s)], 24 Gauss-Legendre
    nodes.

    Assumes: independent elements; exact then to 1e-3.

    Source: integration by parts of the distribution function of the maximum.
    """
    mean, var = input.mean.to(input.var.dtype), input.var
    chosen = (dim,) if isinstance(dim, int) else tuple(dim or range(mean.dim()))
    axes = tuple(axis % mean.dim() for axis in chosen)
    is_certain = var == 0
    std = torch.where(is_certain, 1.0, var).sqrt()
    reach = torch.where(is_certain, 0.0, 5 * std)
    low, high = (end.amax(axes, keepdim=True) for end in (mean - reach, mean + reach))
    half = (high - low) / 2
    zeroth, first = torch.zeros_like(half), torch.zeros_like(half)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        x = low + half * (node + 1)
        joint = torch.where(is_certain, (x >= mean).to(mean), cdf((x - mean) / std))
        for axis in axes:
            joint = joint.prod(axis, keepdim=True)
        zeroth = zeroth + weight * joint
        first = first + weight * joint * (1 - node)
    zeroth, first = zeroth * half, first * half.square()
    out = bounded(high - zeroth, input.mean.dtype).to(input.mean.dtype)
    spread = (2 * first - zeroth.square()).clamp(min=0)
    return Moments(out, spread) if keepdim else Moments(out.squeeze(axes), spread.squeeze(axes))


@rule("amin", fidelity=APPROXIMATE, samples=_DIMENSIONS, error=0.01)
def amin(input: Moments, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """As `-amax(-x)`."""
    return _negate(amax(_negate(input), dim, keepdim))


class Extreme(NamedTuple):
    """What `max(dim)` and `min(dim)` return; the indices must not be used."""

    values: Moments
    indices: Refused


_POSITION = (
    "The position of the largest or smallest element is not a Gaussian; the values alone are: "
    '`x.max(dim)[0]` or `x.amax(dim)`. `fallback="linearize"` freezes the position at the mean.'
)


def _register_extremum(name: str, over_axes: Rule, of_two: Rule, position: Target) -> None:
    def extremum(input: Any, *args: Any, **kwargs: Any) -> Moments | Extreme:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, (Moments, Tensor)):
            return of_two(input, other)
        if not args and not kwargs:
            return over_axes(input)
        settings = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
        where = Refused(position(input.mean, **settings), _POSITION)
        return Extreme(over_axes(input, **settings), where)

    extremum.__doc__ = (
        f"As `{over_axes.name}` over everything or a dimension, or `{of_two.name}` of two tensors."
    )
    rule(
        name,
        fidelity=APPROXIMATE,
        samples=[Sample(normal(2, 5)), *operands((3, 4), second=(3, 4))],
        error=0.01,
    )(extremum)


_register_extremum("max", amax, maximum, torch.argmax)
_register_extremum("min", amin, minimum, torch.argmin)
