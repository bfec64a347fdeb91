"""Digits: float32 against 50-digit arithmetic, tails, and values that no sampling reaches."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import howsure as hs

mpmath.mp.dps = 50
RATIOS = [-8.0, -7.5, -6.3, -5.0, -4.0, -3.1, -2.0, -1.0, -0.3, 0.0, 0.2, 1.0, 3.0, 7.0, 13.5, 40.0]


def exact_leaky(a, slope):
    """Variance of `x if x > 0 else slope x` for x ~ N(a, 1), in 50 digits."""
    a, slope = mpmath.mpf(a), mpmath.mpf(slope)
    upper, lower, density = mpmath.ncdf(a), mpmath.ncdf(-a), mpmath.npdf(a)
    first = a * upper + density + slope * (a * lower - density)
    second_upper = (a * a + 1) * upper + a * density
    second_lower = (a * a + 1) * lower - a * density
    return second_upper + slope * slope * second_lower - first * first


@pytest.mark.parametrize("std", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.2, -1.0])
def test_rectifiers_keep_their_digits_in_float32(slope, std):
    mean = torch.tensor(RATIOS) * std
    model = torch.nn.LeakyReLU(slope) if slope else torch.relu
    out = hs.propagate(model, mean, torch.full_like(mean, std) ** 2)
    # The ratio that the rounded float32 inputs really have.
    exact = [float(exact_leaky(float(m) / float(torch.tensor(std)), slope)) for m in mean]
    expected = torch.tensor(exact, dtype=torch.float64) * float(torch.tensor(std)) ** 2
    torch.testing.assert_close(out.var.double(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("ratio", [-8.0, -4.0, -1.0, 0.0, 2.0, 5.9])
def test_relu6_is_a_relu_far_below_its_ceiling(ratio):
    mean, var = torch.tensor([ratio * 1e-2]), torch.tensor([1e-4])
    relu, relu6 = hs.propagate(torch.relu, mean, var), hs.propagate(torch.nn.ReLU6(), mean, var)
    torch.testing.assert_close(relu6.var, relu.var, rtol=1e-3, atol=0)
    torch.testing.assert_close(relu6.mean, relu.mean, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("width", [1e-4, 1e-3, 1e-2, 0.03, 0.1, 1.0])
def test_a_window_much_narrower_than_the_noise(width):
    """clamp(x, 0, width) for x ~ N(0.3, 1): almost a coin with two sides."""
    mean = torch.tensor([0.3])
    out = hs.propagate(lambda x: x.clamp(0.0, width), mean, 1.0)
    density = [mpmath.npdf(x, 0.3, 1) for x in (0, width / 2, width)]
    inside = width * (density[0] + 4 * density[1] + density[2]) / 6
    first = mpmath.quad(lambda x: mpmath.ncdf(0.3 - x), [0, width])
    second = 2 * mpmath.quad(lambda x: x * mpmath.ncdf(0.3 - x), [0, width])
    assert float(inside) < width
    torch.testing.assert_close(float(out.var), float(second - first**2), rtol=1e-2, atol=0)


ACTIVATIONS = [
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.nn.functional.silu,
    torch.nn.functional.gelu,
    torch.nn.functional.softplus,
    torch.nn.functional.elu,
    torch.nn.functional.relu6,
    torch.nn.functional.hardsigmoid,
    torch.abs,
    torch.square,
    torch.sin,
]


@settings(max_examples=60, deadline=None)
@given(
    mean=st.floats(-1e4, 1e4, width=32),
    var=st.floats(0.0, 1e6, width=32),
    index=st.integers(0, len(ACTIVATIONS) - 1),
    half=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_any_finite_input_gives_finite_moments_and_gradients(mean, var, index, half):
    x = torch.tensor([mean], dtype=half).clamp(-6e4, 6e4).requires_grad_()
    noise = torch.tensor([var], dtype=torch.float64 if half == torch.float64 else torch.float32)
    noise.requires_grad_()
    out = hs.propagate(ACTIVATIONS[index], x, noise)
    assert bool(torch.isfinite(out.mean).all()) and bool(torch.isfinite(out.var).all())
    assert bool((out.var >= 0).all())
    if half == torch.float16:
        return  # a gradient above 65504 has no float16 representation
    for gradient in torch.autograd.grad(out.var.sum() + out.mean.float().sum(), [x, noise]):
        assert bool(torch.isfinite(gradient).all())


def test_softmax_survives_extreme_logits():
    logits = torch.tensor([[1e4, -1e4, 45.0], [0.0, 0.0, 0.0], [-1e4, -1e4, -1e4]])
    for var in (0.0, 1e-6, 1.0, 100.0, 1e6):
        out = hs.propagate(torch.nn.Softmax(1), logits, var)
        assert bool(torch.isfinite(out.mean).all())
        torch.testing.assert_close(out.mean.sum(1), torch.ones(3))
        # A variable between 0 and 1 has a variance of at most 1/4.
        assert bool((out.var >= 0).all()) and bool((out.var <= 0.26).all())


def test_a_max_pool_over_padding_of_minus_infinity():
    """The "same" padding of several libraries: `F.pad(x, ..., value=-inf)` before the pool."""
    x = torch.rand(1, 2, 5, 5)

    def model(image):
        padded = torch.nn.functional.pad(image, (3, 3, 3, 3), value=float("-inf"))
        return torch.nn.functional.max_pool2d(padded, 3, 2)[..., 1:-1, 1:-1]

    out = hs.propagate(model, x, 0.0)
    assert torch.equal(out.mean, model(x)) and torch.equal(out.var, torch.zeros_like(out.mean))
    noisy = hs.propagate(model, x, 0.01)
    assert bool(torch.isfinite(noisy.mean).all()) and bool((noisy.var > 0).all())
