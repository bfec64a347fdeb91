"""Pointwise rules against quadrature and closed forms: any noise, means across the kinks."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import howsure as hs

DTYPES = (torch.float32, torch.float64)
STDS = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e3)

# Function and kinks: the slope jumps there, or the curve is sharp.
KINKED = {
    "relu": (F.relu, (0,)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), (0,)),
    "prelu": (lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)), (0,)),
    "abs": (torch.abs, (0,)),
    "selu": (F.selu, (0,)),
    "elu": (F.elu, (0,)),
    "elu(alpha=0.2)": (lambda x: F.elu(x, 0.2), (0,)),
    "elu(alpha=5)": (lambda x: F.elu(x, 5.0), (0,)),
    "elu(alpha=-0.5)": (lambda x: F.elu(x, -0.5), (0,)),
    "celu(alpha=0.3)": (lambda x: F.celu(x, 0.3), (0,)),
    "celu(alpha=7)": (lambda x: F.celu(x, 7.0), (0,)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.25, 0.75), (-0.25, 0.75)),
    "relu6": (F.relu6, (0, 6)),
    "hardsigmoid": (F.hardsigmoid, (-3, 3)),
    "hardswish": (F.hardswish, (-3, 3)),
    "clamp(min)": (lambda x: x.clamp(min=0.75), (0.75,)),
    "clamp(max)": (lambda x: x.clamp(max=0.75), (0.75,)),
    "softshrink": (F.softshrink, (-0.5, 0.5)),
    "hardshrink": (F.hardshrink, (-0.5, 0.5)),
    "threshold": (lambda x: F.threshold(x, 0.25, 0.1), (0.25,)),
}
SMOOTH = {
    "softplus": (F.softplus, (0,)),
    "softplus(beta=50)": (lambda x: F.softplus(x, 50.0), (0,)),
    "sigmoid": (torch.sigmoid, (0,)),
    "tanh": (torch.tanh, (0,)),
    "silu": (F.silu, (0,)),
    "mish": (F.mish, (0,)),
    "gelu": (F.gelu, (0,)),
    "gelu(tanh)": (lambda x: F.gelu(x, approximate="tanh"), (0,)),
    "logsigmoid": (F.logsigmoid, (0,)),
    "softsign": (F.softsign, (0,)),
    "tanhshrink": (F.tanhshrink, (0,)),
    "erf": (torch.erf, (0,)),
    "erfc": (torch.erfc, (0,)),
    "atan": (torch.atan, (0,)),
    "asinh": (torch.asinh, (0,)),
}
FUNCTIONS = KINKED | SMOOTH

_NODES, _WEIGHTS = (torch.tensor(each) for each in np.polynomial.legendre.leggauss(16))
_REACH = 12.0


def quadrature(function, mean, std, kinks):
    """Mean and std in float64: short pieces that end at the kinks and crowd around them."""
    steps = [sign * c * 10.0**j for j in range(-4, 5) for c in (1, 3) for sign in (1, -1)]
    places = [kink + step for kink in kinks for step in (0.0, *steps)]
    edges = (torch.tensor(places, dtype=torch.float64) - mean[:, None]) / std[:, None]
    grid = torch.linspace(-_REACH, _REACH, 65, dtype=torch.float64).expand(len(mean), -1)
    edges = torch.cat([grid, edges.clamp(-_REACH, _REACH)], 1).sort(1).values
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    z = (low + high) / 2 + (high - low) / 2 * _NODES
    weight = (high - low) / 2 * _WEIGHTS * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    center = function(mean)
    value = function(mean[:, None, None] + std[:, None, None] * z) - center[:, None, None]
    shift = (weight * value).sum((1, 2))
    var = (weight * (value - shift[:, None, None]).square()).sum((1, 2))
    return center + shift, var.sqrt()


def across(kinks, dtype):
    """Means from 5 deviations below each kink to 5 above, and elsewhere, for every std."""
    pairs = [
        (mean, std)
        for std in STDS
        for mean in (
            *(kink + d * std for kink in kinks for d in (-5, -3, -1, -0.3, 0, 0.3, 1, 3, 5)),
            *(-30, -10, -5, -2, -1.2, -0.7, -0.1, 0.1, 0.7, 1.2, 2, 5, 10, 30, 8 * std, -8 * std),
        )
    ]
    mean, std = torch.tensor(pairs, dtype=torch.float64).T
    return mean.to(dtype), std.square().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_agree_with_quadrature(name, dtype):
    function, kinks = FUNCTIONS[name]
    mean, var = across(kinks, dtype)
    out = hs.propagate(function, mean, var)
    std = var.double().sqrt()
    expected_mean, expected_std = quadrature(function, mean.double(), std, kinks)
    # Nobody can tell values apart that round to the same number: what the result's and the
    # operation's own rounding hide does not count, nor a tail of one in a million.
    plain = function(mean.double())
    hidden = 4 * torch.finfo(dtype).eps * torch.maximum(plain.abs(), expected_mean.abs())
    hidden = hidden + (function(mean).double() - plain).abs() + 1e-6 * std
    for found, expected in (out.mean, expected_mean), (out.var.sqrt(), expected_std):
        off = (found.double() - expected).abs() - hidden - 1e-3 * expected_std
        worst = int(off.argmax())
        at = f"mean {float(mean[worst]):g}, std {float(std[worst]):g}"
        assert off[worst] <= 0, f"{float(found[worst])} for {float(expected[worst])} at {at}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_the_flat_tail_of_elu_keeps_its_digits(alpha, dtype):
    """Far below what the result's own rounding hides, where the network may scale it up again."""
    mean, std = torch.tensor([-8.0, -12.0, -16.0, -25.0], dtype=dtype), 1e-4
    out = hs.propagate(lambda x: F.elu(x, alpha), mean, std**2)
    expected = alpha * torch.exp(mean.double()) * std * (1 + 0.75 * std**2)
    torch.testing.assert_close(out.var.double().sqrt(), expected, rtol=1e-3, atol=0)


def exponential(rate):
    def moments(m, v):
        return mpmath.e ** (rate * m + rate**2 * v / 2), mpmath.e ** (
            2 * rate * m + rate**2 * v
        ) * mpmath.expm1(rate**2 * v)

    return moments


def hyperbolic(function, sign):
    def moments(m, v):
        grown = mpmath.expm1(v)
        spread = grown * ((1 + grown) * mpmath.cosh(2 * m) + sign) / 2
        return mpmath.e ** (v / 2) * function(m), spread

    return moments


def power(p):
    def moments(m, v):
        raw = [mpmath.mpf(1), m]
        for n in range(2, 2 * p + 1):
            raw.append(m * raw[-1] + (n - 1) * v * raw[-2])
        return raw[p], raw[2 * p] - raw[p] ** 2

    return moments


CLOSED = {
    "exp": (torch.exp, exponential(1)),
    "exp2": (torch.exp2, exponential(mpmath.log(2))),
    "3 ** x": (lambda x: 3.0**x, exponential(mpmath.log(3))),
    "cosh": (torch.cosh, hyperbolic(mpmath.cosh, -1)),
    "sinh": (torch.sinh, hyperbolic(mpmath.sinh, 1)),
    **{f"x ** {p}": (lambda x, p=p: x**p, power(p)) for p in (2, 3, 4, 5, 8)},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOSED)
def test_moments_agree_with_closed_forms(name, dtype):
    """In 60 digits, cut off at the largest number."""
    function, closed = CLOSED[name]
    pairs = [
        (mean, std)
        for std in (1e-8, 1e-4, 1e-2, 0.3, 1.0, 3.0, 8.0, 10.0, 100.0, 1e3)
        for mean in (-300, -100, -60, -41, -10, -1, -1e-3, 0, 1e-6, 0.3, 2, 30, 45, 60, 80, 300)
    ]
    mean, std = torch.tensor(pairs, dtype=dtype).T
    out = hs.propagate(function, mean, std.square())
    info = torch.finfo(dtype)
    for m, v, *found in zip(
        *(each.tolist() for each in (mean, std.square(), out.mean, out.var)), strict=True
    ):
        with mpmath.workdps(60):
            expected = closed(mpmath.mpf(m), mpmath.mpf(v))
        for got, exact in zip(found, expected, strict=True):
            bounded = max(min(exact, info.max), -info.max)
            assert abs(got - bounded) <= 1e-5 * abs(bounded) + info.tiny, (name, m, v, got, exact)


_SIZES = (1e-30, 1e-3, 0.1, 0.3, 0.8, 1.0, 3.0, 3.2, 6.0, 20.0, 30.0, 41.0, 60.0, 85.0, 88.0, 700.0)
MEANS = torch.tensor([0.0, *_SIZES, *(-size for size in _SIZES)], dtype=torch.float64)
PLAIN = {
    **{name: function for name, (function, _) in (FUNCTIONS | CLOSED).items()},
    "hardtanh(-0.3, 0.8)": lambda x: F.hardtanh(x, -0.3, 0.8),
    "clamp(1, -1)": lambda x: x.clamp(1.0, -1.0),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "expm1": torch.expm1,
    "x ** -2": lambda x: (x.abs() + 1) ** -2,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_without_noise_the_plain_value(name, dtype):
    function, mean = PLAIN[name], MEANS.to(dtype)
    out = hs.propagate(function, mean, 0.0)
    largest = torch.finfo(dtype).max
    expected = function(mean).clamp(-largest, largest)
    assert bool(((out.mean == expected) | (out.mean == torch.nextafter(expected, out.mean))).all())
    assert bool((out.var == 0).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "low, high", [(1.0, -1.0), (2.0, 2.0), (-math.inf, 0.0), (0.0, math.inf), (-1e30, 0.0)]
)
def test_clamps_with_unusual_limits(low, high, dtype):
    mean = torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.8], dtype=dtype)
    out = hs.propagate(lambda x: x.clamp(low, high), mean, 0.25)
    kinks = [kink for kink in (low, high) if abs(kink) < 100]
    std = torch.full_like(mean, 0.5).double()
    expected = quadrature(lambda x: x.clamp(low, high), mean.double(), std, kinks)
    torch.testing.assert_close(out.mean.double(), expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(out.var.double().sqrt(), expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [0.01, 0.05, 0.0999, 0.101, 0.2])
def test_narrow_windows_in_float32(width):
    mean = torch.tensor([-3.0, -1.0, -0.3, 0.0, 0.5, 2.0, 4.0])
    out = hs.propagate(lambda x: x.clamp(0.0, width), mean, 1.0)
    std = torch.ones_like(mean).double()
    _, expected = quadrature(lambda x: x.clamp(0.0, width), mean.double(), std, (0.0, width))
    torch.testing.assert_close(out.var.double().sqrt(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("function", [torch.sqrt, torch.log1p], ids=["sqrt", "log1p"])
def test_noise_about_zero_is_not_lost(function):
    """The square root of 0 +- 1 is uncertain, though its log-normal stand-in has no mean."""
    out = hs.propagate(function, torch.tensor([0.0, 1e-20]), 1.0)
    assert bool(torch.isfinite(out.mean).all()) and bool((out.var > 0.05).all())
