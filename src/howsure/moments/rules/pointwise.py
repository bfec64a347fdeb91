"""Functions of single elements: quadrature, sines, and first order where a Gaussian has no moments.

Quadrature takes any function (`howsure.moments.numerics.expectation`). One that has a kink brings
`deviation(mean, step)`, f(mean + step) - f(mean) without loss of digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import bounded, composite, elementwise, in_float32, pointwise
from howsure.moments.numerics import expectation
from howsure.moments.rule import (
    LINEARIZED,
    Kind,
    Sample,
    Target,
    constant,
    narrow,
    normal,
    one_of_each_shape,
    positive,
    rule,
)
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype

_aten = torch.ops.aten


def _softsign_step(mean: Tensor, step: Tensor) -> Tensor:
    """softsign(mean + step) - softsign(mean) over a common denominator."""
    x = mean + step
    crossed = torch.where(x * mean.sign() < 0, 2 * x * mean.abs(), 0.0)
    return (step + crossed) / ((1 + x.abs()) * (1 + mean.abs()))


def _tanhshrink_step(mean: Tensor, step: Tensor) -> Tensor:
    """(d - tanh d) + tanh(d) tanh(m) tanh(m + d), the first by its series where d is small."""
    square = step.square()
    series = step * square * (1 / 3 - square * (2 / 15 - square * 17 / 315))
    moved = torch.tanh(step)
    alone = torch.where(step.abs() < 0.2, series, step - moved)
    return alone + moved * torch.tanh(mean) * torch.tanh(mean + step)


def _hardswish_step(mean: Tensor, step: Tensor) -> Tensor:
    """From the step of c = clamp(x + 3, 0, 6): x c / 6 moves by (d c + (x + d) d_c) / 6."""
    low, high = -3 - mean, 3 - mean
    moved = step.maximum(low).minimum(high) - torch.zeros_like(mean).maximum(low).minimum(high)
    return (step * (mean + 3).clamp(0, 6) + (mean + step) * moved) / 6


elementwise(torch.sigmoid, "sigmoid", "expit", analytic=True)
elementwise(torch.tanh, "tanh", analytic=True)
elementwise(F.silu, "silu", analytic=True)
elementwise(F.mish, "mish", analytic=True)
elementwise(
    F.gelu,
    "gelu",
    samples=[*one_of_each_shape, Sample(normal(3, 4), approximate="tanh")],
    analytic=True,
)
elementwise(F.logsigmoid, "logsigmoid", "log_sigmoid", analytic=True)
elementwise(F.softsign, "softsign", deviation=_softsign_step)
elementwise(F.tanhshrink, "tanhshrink", deviation=_tanhshrink_step)
elementwise(F.hardswish, "hardswish", deviation=_hardswish_step, kinks=(-3.0, 3.0), error=1e-4)
elementwise(torch.erf, "erf")
elementwise(torch.erfc, "erfc")
elementwise(torch.atan, "atan", "arctan")
elementwise(torch.asinh, "asinh", "arcsinh")

_BY_QUADRATURE: dict[str, Any] = {"kind": Kind.ELEMENTWISE, "error": 1e-3}


@pointwise(
    F.softplus,
    "softplus",
    samples=[*one_of_each_shape, Sample(normal(3, 4), 2.0, threshold=15.0)],
    **_BY_QUADRATURE,
)
def softplus(mean: Tensor, var: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Moments:
    """E and Var of softplus(beta x) / beta by centered quadrature, in units of 1 / beta.

    Assumes: independent elements. Exact up to the quadrature's error.

    Source: Gauss-Legendre quadrature, see `howsure.moments.numerics`.
    """
    unit, u = partial(F.softplus, threshold=threshold), mean * beta
    out = expectation(unit, u, var * (beta * beta))
    moved = F.softplus(mean, beta, threshold) + (out.mean - unit(u)) / beta
    return Moments(moved, out.var / (beta * beta))


# Exponential linear units: straight above 0, exponential below, with a kink in between.
def _exponential_unit(
    mean: Tensor, var: Tensor, plain: Tensor, slope: float, depth: float, rate: float
) -> Moments:
    """Moments of the unit with slope x above 0, depth (e^(rate x) - 1) below.

    In units of the tail, u = rate x. The noise moves the mean away from `plain`, its plain value.
    """
    if rate <= 0:
        raise NoRuleError("The unit must level off below 0: choose a positive `alpha` for `celu`.")

    def value(u: Tensor) -> Tensor:
        return torch.where(u > 0, slope / rate * u, depth * torch.expm1(u.clamp(max=0)))

    def deviation(u: Tensor, step: Tensor) -> Tensor:
        """On one side of the kink no digits are lost, however small the step or flat the tail."""
        end = u + step
        left = depth * torch.exp(torch.maximum(u, end).clamp(max=0))
        below = -left * torch.expm1(-step.abs()) * step.sign()
        one_side = torch.where(u > 0, slope / rate * step, below)
        return torch.where((u > 0) == (end > 0), one_side, value(end) - value(u))

    out = expectation(torch.zeros_like, mean * rate, var * (rate * rate), deviation=deviation)
    return Moments(plain + out.mean, out.var)


_ALPHAS = [*one_of_each_shape, Sample(normal(3, 4), 0.7)]


@pointwise(F.elu, F.elu_, samples=_ALPHAS, **_BY_QUADRATURE)
def elu(mean: Tensor, var: Tensor, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """E and Var by centered quadrature, split at the kink.

    Assumes: independent elements. Exact up to the quadrature's error.

    Source: Gauss-Legendre quadrature, see `howsure.moments.numerics`.
    """
    return _exponential_unit(mean, var, F.elu(mean, alpha), 1.0, alpha, 1.0)


@pointwise(
    _aten.elu.default,
    _aten.elu_.default,
    name="elu (aten)",
    samples=[Sample(normal(3, 4), 0.7, 1.3, 0.9), Sample(normal(5))],
    **_BY_QUADRATURE,
)
def elu_of_programs(
    mean: Tensor, var: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Moments:
    """As `elu`, with factors for the output and for the exponent."""
    plain = _aten.elu.default(mean, alpha, scale, input_scale)
    return _exponential_unit(mean, var, plain, scale, scale * alpha, input_scale)


@pointwise(F.celu, "celu", samples=_ALPHAS, **_BY_QUADRATURE)
def celu(mean: Tensor, var: Tensor, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """As `elu`, for alpha (e^(x / alpha) - 1) below 0."""
    return _exponential_unit(mean, var, F.celu(mean, alpha), 1.0, alpha, 1 / alpha)


# torch's own constants, from Klambauer et al. 2017.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@pointwise(F.selu, "selu", **_BY_QUADRATURE)
def selu(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `elu`, with the self-normalizing constants."""
    return _exponential_unit(mean, var, F.selu(mean), _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA, 1.0)


@composite("glu", samples=[Sample(normal(3, 4)), Sample(normal(2, 4, 3), dim=1)], error=1e-3)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`a sigmoid(b)` for the two halves a and b.

    Assumes: independent halves; exact then, up to the quadrature's error.

    Source: Dauphin et al. 2017; `mul`, `sigmoid`.
    """
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)


_SAME = normal(3, 4)


@rule(
    "logaddexp",
    samples=[
        Sample(normal(3, 4), normal(3, 4)),
        Sample(normal(3, 4, std=0.3), constant(4)),
        Sample(constant(3, 1), normal(4)),
        Sample(_SAME, _SAME),
    ],
    error=1e-3,
)
def logaddexp(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = m_big + E[softplus(d)], Var = Var[softplus(d)] + v_big (1 - 2 E[sigmoid(d)]).

    d ~ N(m_small - m_big, v1 + v2), by quadrature; big is the operand with the larger mean.

    Assumes: the two are independent; exact then, up to the quadrature's error.

    Source: log(e^x + e^y) = y + softplus(x - y), and Stein's lemma for the covariance.
    """
    if input is other:
        assert isinstance(input, Moments)
        return Moments(input.mean + math.log(2), input.var)
    plain = torch.logaddexp(mean_of(input), mean_of(other))
    zeros = torch.zeros_like(plain, dtype=variance_dtype(plain.dtype))
    gap = (mean_of(input) - mean_of(other)).to(zeros.dtype)

    def formula(mean: Tensor, spread: Tensor) -> Moments:
        # From the gap of the means: the small operand's side loses no digits.
        distance = -gap.abs()
        soft, share = (expectation(f, distance, spread) for f in (F.softplus, torch.sigmoid))
        big = torch.where(gap > 0, zeros + var_of(input), zeros + var_of(other))
        var = soft.var + big * (1 - 2 * share.mean)
        return Moments(mean + (soft.mean - F.softplus(distance)), var)

    return in_float32(formula, Moments(plain, zeros + var_of(input) + var_of(other)))


# Sine, cosine, sinh and cosh: exact, without cancellation.
@pointwise("sin")
def sin(mean: Tensor, var: Tensor) -> Moments:
    """E = e^{-v/2} sin m, Var = 1/2 (1 - e^-v) (1 - e^-v + 2 e^-v cos(m)**2).

    Assumes: independent elements; exact.

    Source: characteristic function of the normal distribution.
    """
    return _moments_of_wave(var, torch.sin(mean), torch.cos(mean))


@pointwise("cos")
def cos(mean: Tensor, var: Tensor) -> Moments:
    """As `sin(x + pi / 2)`."""
    return _moments_of_wave(var, torch.cos(mean), torch.sin(mean))


def _moments_of_wave(var: Tensor, value: Tensor, slope: Tensor) -> Moments:
    loss = -torch.expm1(-var)
    steepness = slope.square() * torch.exp(-var)
    return Moments(torch.exp(-0.5 * var) * value, 0.5 * loss * (loss + 2 * steepness))


def _register_hyperbolic(name: str, function: Target, offset: float) -> None:
    @pointwise(name, samples=[Sample(normal(3, 4, std=0.5)), Sample(normal(7, mean=2.0, std=0.2))])
    def hyperbolic(mean: Tensor, var: Tensor) -> Moments:
        """E = e^{v/2} f(m), Var = c g + g**2 / 2 + g (1 + g) sinh(m)**2 with g = e^v - 1.

        c = 1 for sinh, 0 for cosh. Cut off at the largest number.

        Assumes: independent elements; exact.

        Source: moment generating function of the normal distribution.
        """
        growth = bounded(torch.expm1(var))
        steepness = bounded(torch.sinh(mean))
        # One factor after the other: the square alone may overflow where the product does not.
        slope = bounded(bounded(growth * (1 + growth)) * steepness) * steepness
        spread = bounded(growth * (offset + 0.5 * growth)) + bounded(slope)
        half = bounded(torch.exp(0.25 * var))
        return Moments(bounded(bounded(bounded(function(mean)) * half) * half), bounded(spread))


_register_hyperbolic("sinh", torch.sinh, 1.0)
_register_hyperbolic("cosh", torch.cosh, 0.0)


# Functions that a Gaussian leaves the domain of, or meets a pole of: first order in the noise.
# `howsure.moments.fallback` linearizes operations of which nothing is known; here the derivative is
# written out, which costs one pass, and works inside `vmap` and exported programs.
def _first_order(value: Tensor, slope: Tensor, var: Tensor) -> Moments:
    """slope**2 var; an infinite slope, at the edge of the domain, leaves no noise without noise."""
    slope = bounded(slope)
    return Moments(value, bounded(bounded(slope * var) * slope))


def _linearize(
    function: Target, derivative: Callable[[Tensor], Tensor], *names: str, center: float
) -> None:
    """Registers f with its derivative; samples lie around `center`, well inside the domain."""
    samples = [Sample(narrow(center, 0.1, 1e-4))]

    @pointwise(*names, fidelity=LINEARIZED, samples=samples, error=0.02)
    def linearized(mean: Tensor, var: Tensor) -> Moments:
        """E = f(m), Var = f'(m)**2 v.

        Assumes: noise that is small against the distance to the edge of the domain or the pole,
        beyond which the Gaussian has no moments.

        Source: Taylor expansion.
        """
        return _first_order(function(mean), derivative(mean), var)


_linearize(torch.tan, lambda x: 1 + torch.tan(x).square(), "tan", center=0.5)
_linearize(torch.asin, lambda x: torch.rsqrt(1 - x.square()), "asin", "arcsin", center=0.3)
_linearize(torch.acos, lambda x: torch.rsqrt(1 - x.square()), "acos", "arccos", center=0.3)
_linearize(torch.acosh, lambda x: torch.rsqrt(x.square() - 1), "acosh", "arccosh", center=2.0)
_linearize(torch.atanh, lambda x: 1 / (1 - x.square()), "atanh", "arctanh", center=0.3)
_linearize(
    torch.erfinv,
    lambda x: math.sqrt(math.pi) / 2 * torch.exp(torch.erfinv(x).square()),
    "erfinv",
    center=0.3,
)


_PROBABILITY = narrow(0.4, 0.1, 1e-4)
_PROBABILITIES = [Sample(_PROBABILITY), Sample(_PROBABILITY, eps=1e-3)]


@pointwise("logit", fidelity=LINEARIZED, samples=_PROBABILITIES, error=0.02)
def logit(mean: Tensor, var: Tensor, eps: float | None = None) -> Moments:
    """E = logit(m), Var = v / (m (1 - m))**2; 0 where `eps` clamps the mean.

    Assumes: noise that is small against the distance to 0 and 1.

    Source: Taylor expansion.
    """
    out = _first_order(torch.logit(mean, eps), 1 / (mean * (1 - mean)), var)
    if eps is None:
        return out
    inside = (mean > eps) & (mean < 1 - eps)
    return Moments(out.mean, torch.where(inside, out.var, torch.zeros_like(var)))


# The variance of an angle of which nothing is known.
_ANY_ANGLE = math.pi**2 / 3


@rule(
    "atan2",
    "arctan2",
    fidelity=LINEARIZED,
    samples=[
        Sample(normal(3, 4, mean=3.0, std=1e-2), normal(3, 4, mean=3.0, std=1e-2)),
        Sample(normal(3, 4, mean=3.0, std=1e-2), positive(4)),
    ],
    error=0.02,
)
def atan2(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """E = atan2(m1, m2), Var = (m2**2 v1 + m1**2 v2) / (m1**2 + m2**2)**2, at most pi**2 / 3.

    Assumes: independent operands, and noise that is small against their length.

    Source: Taylor expansion.
    """
    mean = torch.atan2(mean_of(input), mean_of(other))
    dtype = variance_dtype(mean.dtype)
    y, x = mean_of(input).to(dtype), mean_of(other).to(dtype)
    length = torch.hypot(y, x)
    apart = torch.where(length == 0, 1.0, length)
    shares = [
        _first_order(mean, side / apart / apart, torch.as_tensor(var_of(operand))).var
        for side, operand in ((x, input), (y, other))
    ]
    noisy = torch.as_tensor(var_of(input) + var_of(other) > 0)
    var = torch.where((length == 0) & noisy, _ANY_ANGLE, bounded(shares[0] + shares[1]))
    return Moments(mean, var.clamp(max=_ANY_ANGLE).expand(mean.shape))
