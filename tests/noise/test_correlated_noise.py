"""Correlated noises: the root, the variance and the draws say the same."""

import numpy as np
import pytest
import torch
from correlations import CORRELATION, KERNEL, KINDS, STD, matrix_of

from howsure import noise
from howsure.noise import roots_of

SHAPE = (3, 4, 5)
X = torch.linspace(-1, 1, 120, dtype=torch.float64).reshape(2, *SHAPE)


def made(kind):
    make, covariance = KINDS[kind]
    return make(SHAPE), covariance(SHAPE)


def covariance_of(root, rows=1):
    matrix = matrix_of(root, rows)
    return (matrix.mT @ matrix).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_root_times_its_transpose_is_the_covariance(kind):
    found, expected = made(kind)
    for row in covariance_of(found.root(X), 2):
        np.testing.assert_allclose(row, expected, atol=1e-12)
    assert found.is_correlated


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_the_diagonal(kind):
    found, expected = made(kind)
    var = found(X).expand(X.shape).reshape(2, -1)
    np.testing.assert_allclose(var[0].numpy(), np.diagonal(expected), rtol=1e-12)
    assert torch.equal(var[0], var[1])
    assert torch.equal(found.independent()(X), found(X))
    assert not found.independent().is_correlated


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_covariance_and_rows_are_independent(kind):
    """Each of 14,400 covariances of 20,000 draws within 5.5 of its standard errors: 5e-4."""
    found, expected = made(kind)
    count = 20_000
    x = torch.zeros(count, 2, *SHAPE, dtype=torch.float64).flatten(0, 1)
    drawn = found.sample(x, torch.Generator().manual_seed(1)).reshape(count, -1).numpy()
    truth = np.kron(np.eye(2), expected)
    var = np.diagonal(truth)
    error = np.sqrt((truth**2 + np.outer(var, var)) / count)
    assert np.abs((drawn.T @ drawn / count - truth) / error).max() < 5.5


# The noises of inputs (4, 5) whose batch is counted by the axis between.
IN_THE_MIDDLE = {
    "rows": noise.rows(STD, axis=0),
    "ar1": noise.ar1(STD, CORRELATION, axis=0),
    "random walk": noise.random_walk(0.1, axis=0),
    "blurred": noise.blurred(STD, KERNEL, axes=(0, 2)),
    "sum": noise.rows(STD, axis=0) + noise.std(0.2) + noise.ar1(STD, CORRELATION, axis=0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_axis_may_be_anywhere(kind):
    make, covariance = KINDS[kind]
    root = IN_THE_MIDDLE.get(kind, make((4, 5))).root(torch.zeros(4, 3, 5).double(), 1)
    for row in covariance_of(root, 3):
        np.testing.assert_allclose(row, covariance((4, 5)), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_batch_as_one_input_still_has_independent_rows(kind):
    found, expected = made(kind)
    [(_, _, root)] = roots_of(found, X, 0, whole=True)
    np.testing.assert_allclose(covariance_of(root)[0], np.kron(np.eye(2), expected), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_have_the_noise_that_they_have_among_all(kind):
    stds = torch.tensor([1.0, 3.0], dtype=torch.float64).reshape(2, 1, 1, 1)
    root = made(kind)[0].scaled(stds.square()).root(X)
    z = torch.randn(2, 2, *root.shape, dtype=torch.float64)
    whole = root.apply(z, slice(None))
    for rows in (slice(1, 2), torch.tensor([1])):
        torch.testing.assert_close(root.apply(z[:, rows], rows), whole[:, rows])
    torch.testing.assert_close(made(kind)[0].root(X).apply(z, slice(None)) * stds, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_and_normalized_noise_keeps_its_correlation(kind):
    found, expected = made(kind)
    np.testing.assert_allclose(covariance_of(found.scaled(4).root(X), 2)[1], 4 * expected)
    stds = np.array([0.5, 1.0, 2.0])
    pushed = found.through_normalize(0.3, stds.tolist())
    by = np.repeat(1 / stds, 20)
    np.testing.assert_allclose(
        covariance_of(pushed.root(X), 2)[1], expected * np.outer(by, by), atol=1e-12
    )
    again = noise.from_config(pushed.to_config())
    assert again.is_correlated
    np.testing.assert_array_equal(covariance_of(again.root(X), 2), covariance_of(pushed.root(X), 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_any_dtype_is_kept(kind, dtype):
    found, expected = made(kind)
    drawn = found.sample(torch.zeros(1, *SHAPE, dtype=dtype), torch.Generator().manual_seed(0))
    assert drawn.dtype == dtype
    assert found(X.to(dtype)).dtype == (torch.float32 if dtype.itemsize == 2 else dtype)
    size = float(drawn.double().square().mean() / np.diagonal(expected).mean())
    assert 1e-4 < size < 20  # one draw of what may be a single number


def test_the_covariance_may_be_positional():
    matrix = np.cov(np.random.default_rng(4).normal(size=(60, 200)))
    by_name, by_position = noise.correlated(covariance=matrix), noise.correlated(matrix)
    assert torch.equal(by_position.factor, by_name.factor)


def test_one_covariance_for_each_input():
    factors = np.random.default_rng(1).normal(size=(2, 60, 4))
    found = noise.correlated(covariance=factors @ factors.transpose(0, 2, 1))
    for row, factor in zip(covariance_of(found.root(X), 2), factors, strict=True):
        np.testing.assert_allclose(row, factor @ factor.T, atol=1e-9)
    along = np.random.default_rng(2).normal(size=(2, 4, 3))
    root = noise.correlated(factor=along, axis=2).root(X)
    for row, factor in zip(covariance_of(root, 2), along, strict=True):
        part = row.reshape(3, 4, 5, 3, 4, 5)[1, :, 2, 1, :, 2]
        np.testing.assert_allclose(part, factor @ factor.T, atol=1e-12)
    with pytest.raises(ValueError, match="for each of 2 inputs, and the batch has 1"):
        found.root(X[:1])


def test_offsets_may_reach_elements_by_shares():
    """As a flickering lamp that lights some pixels more than others."""
    shares = torch.linspace(0, 1, 60, dtype=torch.float64).reshape(SHAPE)
    expected = np.outer(shares.flatten(), shares.flatten())
    np.testing.assert_allclose(covariance_of(noise.common_mode(shares).root(X), 2)[0], expected)


@pytest.mark.parametrize("rank", [1, 3, 60])
def test_singular_covariances_have_roots(rank):
    factor = np.random.default_rng(3).normal(size=(60, rank)).astype(np.float32)
    for covariance in (factor @ factor.T, torch.from_numpy(factor @ factor.T)):
        found = covariance_of(noise.correlated(covariance=covariance).root(X), 2)[0]
        np.testing.assert_allclose(found, factor @ factor.T, atol=2e-5 * rank)


def test_long_series_need_no_matrix():
    x = torch.zeros(1, 100_000, dtype=torch.float64)
    drawn = noise.ar1(2.0, 0.95).sample(x, torch.Generator().manual_seed(0))[0]
    pairs = drawn[1:] * drawn[:-1]
    # The mean of squares of such a series varies as that of length * (1 - r**2) / (1 + r**2).
    error = (2 * (1 + 0.95**2) / (1 - 0.95**2) / 100_000) ** 0.5
    assert float(drawn.square().mean() / 4) == pytest.approx(1, abs=4 * error)
    assert float(pairs.mean() / drawn.square().mean()) == pytest.approx(0.95, abs=4e-3)


def test_a_gaussian_kernel_has_the_std_of_the_readings():
    found = noise.blurred(0.5, 1.5)
    assert float(found(X)) == pytest.approx(0.25)
    lines = covariance_of(found.root(X), 2)[0].reshape(3, 4, 5, 3, 4, 5)[0, 0, :, 0, 0, :]
    # Two Gaussians of this std, one after the other.
    expected = 0.25 * np.exp(-(np.arange(5) ** 2) / (4 * 1.5**2))
    np.testing.assert_allclose(lines[0], expected, atol=1e-4)


def test_independent_noise_draws_as_it_always_did():
    x, generator = torch.rand(3, 4), torch.Generator()
    expected = x + 0.5 * torch.randn(3, 4, generator=generator.manual_seed(0))
    assert torch.equal(noise.std(0.5).sample(x, generator.manual_seed(0)), expected)
