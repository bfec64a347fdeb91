"""What repeated frames say about common offsets and neighbors, against noises that are known."""

import numpy as np
import pytest
import torch
from correlations import matrix_of

from howsure import noise

SMOOTH = np.outer([1.0, 2.0, 1.0], [1.0, 2.0, 1.0]) / 6


def frames_of(found, shape, count=40, seed=0):
    """Frames of a scene that stands still, with the noise drawn onto them."""
    scene = torch.linspace(0, 200, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    return found.sample(scene.expand(count, *shape), torch.Generator().manual_seed(seed))


def covariance_of(found, shape):
    matrix = matrix_of(found.root(torch.zeros(1, *shape, dtype=torch.float64)))[0]
    return (matrix.T @ matrix).numpy()


# A noise, the shape of a frame, and what is clearly there: attribute and value.
CASES = {
    "flicker": (noise.std(2) + noise.common_mode(1), (3, 32, 40), {"common": 0.2}),
    "flicker of channels": (
        noise.std(2) + noise.common_mode(1, axis=1),
        (3, 32, 40),
        {"channels": 0.2},
    ),
    "rows": (noise.std(2) + noise.rows(1), (3, 32, 40), {"rows": 0.2}),
    "columns": (noise.std(2) + noise.rows(1, axis=-1), (32, 40), {"columns": 0.2}),
    "all of it": (
        noise.blurred(2, SMOOTH) + noise.common_mode(2) + noise.rows(1),
        (40, 48),
        {"common": 4 / 9, "rows": 1 / 9},
    ),
    "vectors": (noise.std(2) + noise.common_mode(1), (60,), {"common": 0.2}),
    "a few numbers": (noise.std(2) + noise.common_mode(1), (6,), {"common": 0.2}),
    "channels last": (noise.std(2) + noise.common_mode(1, axis=-1), (60, 3), {"channels": 0.2}),
}
OFFSETS = ("common", "channels", "rows", "columns")


@pytest.mark.parametrize("drift", [False, True], ids=["mean", "differences"])
@pytest.mark.parametrize("case", CASES)
def test_offsets_are_found_and_no_others(case, drift):
    found, shape, expected = CASES[case]
    count = 400 if case == "a few numbers" else 100
    structure = noise.identify_from_repeats(frames_of(found, shape, count), drift=drift).structure
    for name in OFFSETS:
        share = getattr(structure, name)
        if name in expected:
            assert share.is_clear
            assert abs(share.value - expected[name]) < 4 * share.error
        else:
            assert share is None or not share.is_clear


@pytest.mark.parametrize("shape", [(3, 32, 40), (32, 40), (60,), (6,), (100, 3), (20, 20, 3)])
@pytest.mark.parametrize("count", [2, 10])
def test_independent_noise_is_left_as_it_is(shape, count):
    for seed in range(10):
        found = noise.identify_from_repeats(frames_of(noise.std(2), shape, count, seed))
        assert found.correlated is found.noise
        assert "vary independently" in found.in_words()


KERNELS = {
    "smooth": (SMOOTH, (2 / 3, 2 / 3)),
    "horizontal": ([[1.0, 1.0]], (0.5, 0.0)),
    "sharpened": ([[-0.25, 1.0, -0.25]], (-0.5 / 1.125, 0.0)),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_neighbors_correlate_as_the_kernel_says(kind):
    kernel, (right, down) = KERNELS[kind]
    shape = (48, 40)
    truth = noise.blurred(1.5, np.array(kernel) / np.linalg.norm(kernel))
    found = noise.identify_from_repeats(frames_of(truth, shape))
    horizontal, vertical = found.structure.neighbors
    assert abs(horizontal.value - right) < 5 * horizontal.error
    assert abs(vertical.value - down) < 5 * vertical.error
    # The suggested noise has the correlations of a small patch.
    patch = (5, 6)
    off = covariance_of(found.correlated, patch) - covariance_of(truth, patch)
    assert np.abs(off).max() < 0.05 * 1.5**2


def test_the_suggested_noise_has_the_covariance():
    truth = noise.blurred(2, SMOOTH) + noise.common_mode(2) + noise.rows(1)
    found = noise.identify_from_repeats(frames_of(truth, (48, 64), 400))
    patch = (4, 5)
    off = covariance_of(found.correlated, patch) - covariance_of(truth, patch)
    assert np.abs(off).max() < 0.08 * 9  # 400 frames know an offset to 7 %
    x = torch.zeros(1, *patch)
    torch.testing.assert_close(
        found.correlated(x), found.noise(x).expand(found.correlated(x).shape), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(
    ("lines", "axes"), [(noise.rows(1), -2), (noise.rows(1, axis=(1, 2)), (-3, -2))]
)
def test_channels_share_their_rows_or_have_their_own(lines, axes):
    found = noise.identify_from_repeats(frames_of(noise.std(1) + lines, (3, 32, 32)))
    assert [part.axis for part, _ in found.structure.parts if hasattr(part, "axis")] == [axes]


@pytest.mark.parametrize("per", ["all", "channel", "element"])
def test_a_variance_for_each_keeps_the_structure(per):
    frames = frames_of(noise.std(1) + noise.common_mode(1), (3, 20, 20), 200)
    stds = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).reshape(3, 1, 1)
    found = noise.identify_from_repeats(frames * stds, per=per)
    x = torch.zeros(1, 3, 20, 20)
    torch.testing.assert_close(
        found.correlated(x).expand(x.shape), found.noise(x).expand(x.shape), rtol=1e-5, atol=0
    )
    covariance = covariance_of(found.correlated, (3, 20, 20))
    correlation = covariance / np.sqrt(np.outer(np.diagonal(covariance), np.diagonal(covariance)))
    assert abs(correlation[0, 5] - 0.5) < 0.15


@pytest.mark.parametrize(
    "truth",
    [noise.std(1) + noise.common_mode(1), noise.blurred(1, SMOOTH), noise.rows(1) + noise.std(1)],
    ids=["common mode", "blurred", "rows"],
)
def test_standard_errors_know_of_the_correlation(truth):
    """Intervals of 2 standard errors hold the variance in 87 to 100 % of 200 recordings.

    The offset of a frame has few degrees of freedom, and its variance a skewed distribution.
    """
    var = float(truth(torch.zeros(1, 24, 24)).max())
    inside = []
    for seed in range(200):
        found = noise.identify_from_repeats(frames_of(truth, (24, 24), 20, seed))
        inside.append(abs(found.noise.var - var) < 2 * found.std_error)
    assert np.mean(inside) >= 0.87


def test_saturated_pixels_have_no_say():
    truth = noise.std(2) + noise.common_mode(1)
    frames = frames_of(truth, (40, 40), 100) + 20
    clipped = frames.clamp(0, 150)
    found = noise.identify_from_repeats(clipped, saturation=(0, 150)).structure
    assert abs(found.common.value - 0.2) < 4 * found.common.error
    assert not any(each.is_clear for each in found.neighbors)


def test_large_images_are_read_in_their_middle():
    found = noise.identify_from_repeats(
        frames_of(noise.std(2) + noise.rows(1), (600, 300), 6)
    ).structure
    assert abs(found.rows.value - 0.2) < 4 * found.rows.error


def test_the_reading_in_words():
    truth = noise.blurred(2, SMOOTH) + noise.common_mode(1)
    words = noise.identify_from_repeats(frames_of(truth, (64, 64), 200)).in_words()
    numbers, structure = words.splitlines()
    assert numbers.startswith("std ")
    assert "% of the variance is common to the whole frame; neighbors correlate by 0.6" in structure
    assert structure.endswith("use the noise `correlated`, `common_mode` + `blurred`")


def test_the_reading_in_numbers():
    found = noise.identify_from_repeats(frames_of(noise.blurred(2, SMOOTH), (64, 64)))
    numbers = found.numbers()
    assert float(numbers["common_share"]) == found.structure.common.value
    assert float(numbers["horizontal_correlation_error"]) == found.structure.neighbors[0].error
    assert "channels_share" not in numbers


def test_what_was_found_is_used_with_its_correlation():
    found = noise.identify_from_repeats(frames_of(noise.std(2) + noise.common_mode(1), (32, 32)))
    assert noise.as_noise(found).is_correlated
    assert noise.is_correlated(found)
    assert "correlated" in repr(found)
    again = noise.from_config(noise.to_config(found))
    x = torch.zeros(2, 32, 32)
    assert torch.equal(again(x), found.correlated(x)) and again.is_correlated
