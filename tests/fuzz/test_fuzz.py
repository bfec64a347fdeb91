"""Random networks, noises and dtypes: what must hold for all of them."""

import pytest
import torch
from architectures import networks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import howsure as hs

# Drawn anew for every version of the test, but the same in every run: CI must not depend on luck.
FUZZ = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SINGLE = ("adf", "gradients", "linear")
SAMPLED = ("sampled_adf", "mc_dropout", "noise_sampling")
DRAWS = 4000


@st.composite
def noises(draw, x):
    """A number, a map, or variance on some inputs only; as variances."""
    level = draw(st.sampled_from([1e-6, 1e-3, 0.05, 1.0]))
    kind = draw(st.sampled_from(["number", "map", "some"]))
    if kind == "number":
        return level
    map_ = level * torch.rand(x.shape, dtype=x.dtype)
    return map_ if kind == "map" else map_ * (torch.rand(x.shape) < 0.3)


def check_sound(found, x):
    for var in (found.data_var, found.model_var):
        assert var.dtype == x.dtype and var.shape == found.mean.shape
        assert bool(var.isfinite().all()) and bool((var >= 0).all())
    assert bool(found.mean.isfinite().all())


@pytest.mark.parametrize("method", SINGLE + SAMPLED)
@given(drawn=networks(), data=st.data())
@settings(FUZZ, max_examples=15)
def test_variances_are_finite_and_not_negative(method, drawn, data):
    model, x = drawn
    noise = data.draw(noises(x))
    rate = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    sure = hs.Uncertain(model, noise, method, rate=rate, samples=6)
    check_sound(sure(x), x)


@pytest.mark.parametrize("method", SINGLE)
@given(drawn=networks())
@settings(FUZZ, max_examples=15)
def test_without_noise_it_is_the_network(method, drawn):
    model, x = drawn
    found = hs.Uncertain(model, 0.0, method)(x)
    tolerance = 1e-5 if x.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found.mean, model(x).detach(), rtol=tolerance, atol=tolerance)
    assert bool((found.total_var == 0).all())


@given(drawn=networks(), std=st.sampled_from([0.01, 0.03]))
@settings(FUZZ, max_examples=25)
def test_gradients_are_near_monte_carlo(drawn, std):
    """Small noise, where the truth is nearly Gaussian; 4,000 draws know a std to about 1.1 %."""
    model, x = drawn
    found = hs.Uncertain(model, std**2, "gradients")(x)
    noise = torch.randn(DRAWS, *x.shape, dtype=x.dtype) * std
    with torch.no_grad():
        outputs = model((x + noise).flatten(0, 1)).unflatten(0, (DRAWS, len(x)))
    truth = outputs.double().std(0)
    visible = truth > 1e-5  # below, float32 rounding is what varies
    ratio = found.std.double()[visible] / truth[visible]
    assert bool(((ratio > 0.8) & (ratio < 1.25)).all()), ratio
