"""Noise from one image: flat, smooth and textured scenes."""

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from howsure import noise
from howsure.noise.identify import median_variance

SMOOTH = 40 * np.sin(np.linspace(0, 6, 256))[:, None] + np.linspace(0, 90, 256)[None]


def textured(rng, share):
    """A smooth scene whose rows are strongly textured in the given share."""
    texture = 30 * ndimage.gaussian_filter(rng.normal(size=(256, 256)), 0.7)
    return SMOOTH + np.where(np.arange(256)[:, None] < 256 * share, texture, 0)


def plain_estimate(image):
    """The median of the second differences of the whole image (Immerkaer's mask, robust)."""
    mask = np.outer([1, -2, 1], [1, -2, 1])
    return np.median(np.abs(ndimage.convolve(image, mask)[1:-1, 1:-1])) / 6 / 0.6745


@pytest.mark.parametrize("share", [0, 0.3, 0.6])
@pytest.mark.parametrize("std", [2.0, 10.0])
def test_texture_is_mostly_left_out(std, share):
    rng = np.random.default_rng(0)
    image = textured(rng, share) + std * rng.normal(size=(256, 256))
    found = noise.identify_from_image(image).noise.var ** 0.5
    assert found == pytest.approx(std, rel=0.06)
    if share == 0.6 and std == 2:
        assert plain_estimate(image) > 1.2 * std


def test_texture_everywhere_biases_upward():
    rng = np.random.default_rng(1)
    image = textured(rng, 1) + 2 * rng.normal(size=(256, 256))
    assert noise.identify_from_image(image).noise.var ** 0.5 > 3


@pytest.mark.parametrize("size", [66, 130])
def test_standard_errors_are_honest_without_texture(size):
    """Coverage over 250 images, false alarm 1e-5; choosing flat blocks costs up to 2 % coverage."""
    rng, inside = np.random.default_rng(2), []
    for _ in range(250):
        found = noise.identify_from_image(3 * rng.normal(size=(size, size)))
        inside.append(abs(found.noise.var - 9) < 2 * found.std_error)
    low = stats.binom(250, 0.9345).ppf(0.5e-5)
    high = stats.binom(250, 0.9745).ppf(1 - 0.5e-5)
    assert low <= sum(inside) <= high, np.mean(inside)


def test_the_median_correction_agrees_with_simulation():
    """Mean squares of blocks of second differences, drawn in numpy; 4 standard errors, 6e-5."""
    rng = np.random.default_rng(3)
    noises = rng.normal(size=(20_000, 10, 10))
    rows = noises[:, :-2] - 2 * noises[:, 1:-1] + noises[:, 2:]
    residual = (rows[..., :-2] - 2 * rows[..., 1:-1] + rows[..., 2:]) / 6
    power = torch.tensor(np.square(residual).mean((1, 2)))
    estimate, error = median_variance(power)
    assert abs(float(estimate) - 1) < 4 * float(error)


def test_channels_are_separate_or_pooled():
    rng = np.random.default_rng(4)
    image = SMOOTH + np.array([2.0, 4.0, 8.0]).reshape(3, 1, 1) * rng.normal(size=(3, 256, 256))
    each = noise.identify_from_image(image, per="channel")
    var = np.asarray(each.noise.var)
    assert var.shape == np.shape(each.std_error) == (3, 1, 1)
    np.testing.assert_allclose(np.sqrt(var).ravel(), [2, 4, 8], rtol=0.08)
    pooled = noise.identify_from_image(image)
    assert pooled.noise.var == pytest.approx(var.mean(), rel=1e-6)


def test_clipped_sky_is_left_out():
    rng = np.random.default_rng(5)
    scene = np.where(np.arange(256)[:, None] < 120, 300.0, SMOOTH + 50)
    image = np.clip(np.round(scene + 4 * rng.normal(size=(256, 256))), 0, 255).astype(np.uint8)
    assert noise.identify_from_image(image, saturation=(0, 255)).noise.var ** 0.5 == pytest.approx(
        4, rel=0.06
    )
    with pytest.raises(ValueError, match="saturation"):
        noise.identify_from_image(image)
