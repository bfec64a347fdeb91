"""Constant noise from repeated frames: values, and whether the standard errors are honest."""

import numpy as np
import pytest
import torch
from scipy import stats

from howsure import noise
from howsure.noise.identify import pixel_moments


def assert_covers(inside, level=0.9545, false_alarm=1e-5):
    """The share of intervals that hold the truth is `level`, but for chance."""
    low, high = stats.binom(len(inside), level).ppf([false_alarm / 2, 1 - false_alarm / 2])
    assert low <= np.sum(inside) <= high, f"{np.mean(inside):.3f} instead of {level}"


def test_pixel_moments_agree_with_numpy():
    frames = np.random.default_rng(0).normal(3, 2, (7, 2, 5))
    found = pixel_moments(frames)
    np.testing.assert_allclose(found.mean.numpy(), frames.mean(0))
    np.testing.assert_allclose(found.var.numpy(), frames.var(0, ddof=1))
    differences = np.square(frames[1:] - frames[:-1]).mean(0) / 2
    np.testing.assert_allclose(pixel_moments(frames, drift=True).var.numpy(), differences)


@pytest.mark.parametrize("drift", [False, True], ids=["variance", "differences"])
@pytest.mark.parametrize("frames", [2, 5])
def test_the_spread_of_a_variance_agrees_with_simulation(frames, drift):
    """Relative variance over 200,000 pixels; its own relative standard error is below 1.5 %."""
    found = pixel_moments(np.random.default_rng(7).normal(size=(frames, 200_000)), drift=drift)
    assert float(found.var.var()) == pytest.approx(found.spread, rel=0.06)


@pytest.mark.parametrize(
    ("per", "shape"), [("all", ()), ("channel", (3, 1, 1)), ("element", (3, 8, 9))]
)
def test_shapes_broadcast_to_batches_of_images(per, shape):
    rng = np.random.default_rng(1)
    stds = np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    found = noise.identify_from_repeats(stds * rng.normal(size=(40, 3, 8, 9)), per=per)
    assert np.shape(found.noise.var) == np.shape(found.std_error) == shape
    assert found.noise(torch.zeros(2, 3, 8, 9)).shape == shape
    truth = (1 + 4 + 9) / 3 if per == "all" else stds**2
    z = (np.asarray(found.noise.var) - truth) / np.asarray(found.std_error)
    assert np.abs(z).max() < 6  # 216 pixels, chi-square with 39 degrees: false alarm about 1e-4


@pytest.mark.parametrize("drift", [False, True], ids=["variance", "differences"])
@pytest.mark.parametrize("frames", [2, 3, 10])
def test_standard_errors_are_honest(frames, drift):
    """Intervals of 2 standard errors hold the truth 95.45 % of the time; false alarm 1e-5.

    The pixels differ in variance, as the formula allows.
    """
    rng, stds = np.random.default_rng(2), np.linspace(0.5, 2, 400)
    inside = []
    for _ in range(400):
        found = noise.identify_from_repeats(stds * rng.normal(size=(frames, 400)), drift=drift)
        inside.append(abs(found.noise.var - float(np.mean(stds**2))) < 2 * found.std_error)
    assert_covers(inside)


def test_drift_is_ignored_by_differences():
    rng = np.random.default_rng(3)
    light = np.linspace(0, 20, 100).reshape(-1, 1)
    frames = light + 2 * rng.normal(size=(100, 500))
    found = noise.identify_from_repeats(frames, drift=True)
    assert abs(found.noise.var - 4 - 0.5 * (20 / 99) ** 2) < 4 * found.std_error  # 6e-5
    assert noise.identify_from_repeats(frames).noise.var > 30


def test_integers_keep_their_values_and_do_not_wrap():
    rng = np.random.default_rng(4)
    frames = np.clip(np.round(rng.normal(128, 3, (20, 32, 32))), 0, 255)
    expected = noise.identify_from_repeats(frames)
    for spelled in (
        frames.astype(np.uint8),
        torch.tensor(frames, dtype=torch.uint8),
        list(frames.astype(np.int16)),
        frames.astype(">u2")[::-1],
        torch.tensor(frames, dtype=torch.float16),
    ):
        found = noise.identify_from_repeats(spelled)
        assert found.noise.var == pytest.approx(expected.noise.var, rel=1e-12)
    assert abs(expected.noise.var - 9 - 1 / 12) < 4 * expected.std_error  # 6e-5; with rounding


def test_saturated_pixels_are_left_out():
    rng = np.random.default_rng(5)
    scene = np.where(np.arange(2000) < 1000, 100.0, 254.0)
    frames = np.clip(scene + 3 * rng.normal(size=(30, 2000)), 0, 255)
    found = noise.identify_from_repeats(frames, saturation=(0, 255))
    assert abs(found.noise.var - 9) < 4 * found.std_error
    assert noise.identify_from_repeats(frames).noise.var < 7


def test_an_inertial_sensor_at_rest():
    """Identified per axis, it agrees with the data sheet's density and rate."""
    rng, sheet = np.random.default_rng(6), noise.imu([0.001, 0.002, 0.003], 200)
    truth = np.asarray(sheet.var)
    log = np.array([0.1, -0.2, 9.8]) + np.sqrt(truth) * rng.normal(size=(5000, 3))
    found = noise.identify_from_repeats(log, per="element")
    z = (np.asarray(found.noise.var) - truth) / np.asarray(found.std_error)
    assert np.abs(z).max() < 4.5  # false alarm 2e-5
