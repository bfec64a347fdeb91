"""A simulated camera, with photons that are counted, and its gain and read noise found again."""

import numpy as np
import pytest
import torch
from scipy import stats

from howsure import noise

GAIN, READ = 0.5, 2.0


def camera(rng, shape, *, frames=10, gain=GAIN, read=READ, high=255.0, black=0.0):
    """Frames of a scene of evenly spread intensities: photon counts, then read noise."""
    scene = rng.uniform(0, high, shape)
    photons = rng.poisson(scene / gain, (frames, *shape))
    return black + gain * photons + read * rng.normal(size=(frames, *shape))


def scores(found, gain=GAIN, read_var=READ**2):
    """How many standard errors gain and read variance are off."""
    return np.array(
        [
            (found.noise.gain - gain) / found.gain_error,
            (found.noise.read_std**2 - read_var) / found.read_var_error,
        ]
    )


def test_gain_and_read_noise_are_found():
    found = noise.fit_poisson_gaussian(camera(np.random.default_rng(0), (200, 200)))
    assert np.abs(scores(found)).max() < 4  # false alarm 1.3e-4
    assert found.rejected < 1e-3


def test_no_unbiased_fit_is_much_better():
    """The standard errors are within 5 % of the Cramer-Rao bound for Gaussian noise."""
    rng, frames = np.random.default_rng(10), 10
    scene = rng.uniform(0, 255, 40_000)
    var = GAIN * scene + READ**2
    design = np.stack([scene, np.ones_like(scene)], 1)
    information = (design.T * (frames - 1) / (2 * var**2)) @ design
    bound = np.sqrt(np.diag(np.linalg.inv(information)))
    found = noise.fit_poisson_gaussian(scene + np.sqrt(var) * rng.normal(size=(frames, 40_000)))
    errors = np.array([found.gain_error, found.read_var_error])
    np.testing.assert_allclose(errors, bound, rtol=0.05)


@pytest.mark.parametrize(("frames", "drift"), [(3, False), (10, True)])
def test_standard_errors_are_honest(frames, drift):
    """Scores of 150 cameras are standard normal in spread and coverage; false alarm 2e-5 each."""
    rng = np.random.default_rng(1)
    z = np.array(
        [
            scores(noise.fit_poisson_gaussian(camera(rng, (1500,), frames=frames), drift=drift))
            for _ in range(150)
        ]
    )
    low, high = stats.binom(150, 0.9545).ppf([0.5e-5, 1 - 0.5e-5])
    inside = (np.abs(z) < 2).sum(0)
    assert ((low <= inside) & (inside <= high)).all(), inside
    low, high = stats.chi2(150).ppf([0.5e-5, 1 - 0.5e-5])
    squares = np.square(z).sum(0)
    assert ((low < squares) & (squares < high)).all(), squares / 150


def test_errors_in_the_means_do_not_bias_the_gain():
    """Little contrast and much read noise: least squares is off by standard errors, this is not."""
    rng, pixels = np.random.default_rng(2), 600_000
    scene = rng.uniform(60, 150, pixels)
    frames = rng.poisson(scene, (4, pixels)) + 10 * rng.normal(size=(4, pixels))
    found = noise.fit_poisson_gaussian(frames)
    assert np.abs(scores(found, 1.0, 100.0)).max() < 2.5  # false alarm 2.5 %
    plain = np.polyfit(frames.mean(0), frames.var(0, ddof=1), 1)[0]
    assert (1 - plain) / found.gain_error > 3


def test_moving_hot_and_dead_pixels_are_rejected():
    rng = np.random.default_rng(3)
    frames = camera(rng, (100, 100))
    frames[:, :2] += rng.uniform(0, 200, (10, 2, 100))  # something moves through 2 %
    frames[:, 2] = 17.0  # dead
    frames[:, 3] += 1e4 * rng.normal(size=(10, 100))  # hot
    found = noise.fit_poisson_gaussian(frames)
    assert np.abs(scores(found)).max() < 4
    assert found.rejected == pytest.approx(0.04, abs=0.003)


def test_a_night_scene_is_mostly_dark():
    rng = np.random.default_rng(11)
    scene = np.where(rng.random(20_000) < 0.03, rng.uniform(50, 250, 20_000), 1.0)
    photons = rng.poisson(scene / GAIN, (10, 20_000))
    found = noise.fit_poisson_gaussian(GAIN * photons + READ * rng.normal(size=photons.shape))
    assert np.abs(scores(found)).max() < 4
    assert found.rejected < 1e-3


def test_coarse_integers_and_two_frames():
    rng = np.random.default_rng(12)
    frames = np.round(camera(rng, (300, 300), frames=2, gain=0.02, read=0.8))
    found = noise.fit_poisson_gaussian(frames.astype(np.int16))
    assert np.abs(scores(found, 0.02, 0.8**2 + 1 / 12)).max() < 4


def test_one_fit_for_each_channel():
    rng = np.random.default_rng(4)
    gains = (0.3, 0.6, 1.2)
    frames = np.stack([camera(rng, (80, 80), gain=gain) for gain in gains], 1)
    found = noise.fit_poisson_gaussian(frames, per="channel")
    gain, error = np.asarray(found.noise.gain), np.asarray(found.gain_error)
    assert gain.shape == error.shape == np.shape(found.rejected) == (3, 1, 1)
    assert np.abs((gain.ravel() - gains) / error.ravel()).max() < 4.5  # false alarm 2e-5
    assert found.noise(torch.ones(2, 3, 8, 8)).shape == (2, 3, 8, 8)
    each = [noise.fit_poisson_gaussian(frames[:, i]).noise.gain for i in range(3)]
    np.testing.assert_allclose(gain.ravel(), np.array(each), rtol=1e-6)


def test_black_level_and_saturation():
    rng = np.random.default_rng(5)
    frames = np.clip(np.round(camera(rng, (200, 200), black=64.0, high=300)), 0, 255)
    found = noise.fit_poisson_gaussian(frames.astype(np.uint8), black_level=64, saturation=(0, 255))
    # Pixels that hit the limit only by chance are left out, which lowers the rest a little.
    assert found.noise.gain == pytest.approx(GAIN, rel=0.03)
    assert found.noise.read_std**2 == pytest.approx(READ**2 + 1 / 12, rel=0.1)
    assert found.noise.black_level == 64


def test_a_forgotten_black_level_is_an_error():
    frames = camera(np.random.default_rng(6), (100, 100), black=64.0)
    with pytest.raises(ValueError, match="`black_level`"):
        noise.fit_poisson_gaussian(frames)


def test_clipped_highlights_are_an_error():
    rng = np.random.default_rng(7)
    frames = np.minimum(rng.uniform(0, 255, 5000) + 10 * rng.normal(size=(10, 5000)), 200)
    with pytest.raises(ValueError, match="`saturation="):
        noise.fit_poisson_gaussian(frames)


def test_no_read_noise_or_no_photon_noise_gives_0_and_not_less():
    rng = np.random.default_rng(8)
    for _ in range(8):
        found = noise.fit_poisson_gaussian(camera(rng, (3000,), read=0.0))
        assert found.noise.read_std**2 < 4 * found.read_var_error
        assert abs(found.noise.gain - GAIN) < 5 * found.gain_error
        scene = rng.uniform(0, 255, 3000)
        found = noise.fit_poisson_gaussian(scene + 2 * rng.normal(size=(10, 3000)))
        assert found.noise.gain < 4 * found.gain_error
        assert abs(found.noise.read_std**2 - 4) < 5 * found.read_var_error


def test_the_fit_is_a_noise_for_the_same_units():
    frames = camera(np.random.default_rng(9), (100, 100))
    found = noise.fit_poisson_gaussian(frames)
    x = torch.tensor(frames[0])
    assert torch.equal(noise.variance_of(found, x), found.noise(x))
