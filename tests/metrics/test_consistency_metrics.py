"""NEES, NIS and chi-square bands against scipy and numpy."""

import numpy as np
import pytest
import torch
from scipy import stats

import howsure.metrics as M


def drawn(count=50, d=3, seed=0):
    random = np.random.default_rng(seed)
    root = random.normal(size=(count, d, d))
    covariance = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(d)
    mean = random.normal(size=(count, d))
    errors = np.linalg.cholesky(covariance) @ random.normal(size=(count, d, 1))
    return tuple(torch.tensor(x) for x in (mean, covariance, mean + errors[:, :, 0]))


def by_numpy(errors, covariance):
    return np.array([e @ np.linalg.inv(c) @ e for e, c in zip(errors, covariance, strict=True)])


def test_each_distance_and_both_means_are_those_of_numpy():
    mean, covariance, target = drawn()
    expected = by_numpy((target - mean).numpy(), covariance.numpy())
    np.testing.assert_allclose(M.squared_mahalanobis(target - mean, covariance), expected, 1e-9)
    assert M.nees(mean, covariance, target).item() == pytest.approx(expected.mean(), rel=1e-9)
    assert M.nis(target - mean, covariance).item() == pytest.approx(expected.mean(), rel=1e-9)


def test_variances_are_a_diagonal_covariance():
    mean, covariance, target = drawn()
    var = covariance.diagonal(dim1=1, dim2=2)
    expected = M.nees(mean, torch.diag_embed(var), target)
    assert M.nees(mean, var, target) == expected
    torch.testing.assert_close(expected, ((target - mean) ** 2 / var).sum(1).mean())


def test_runs_and_steps_keep_their_shape():
    mean, covariance, target = drawn()
    shaped = M.squared_mahalanobis(
        (target - mean).reshape(10, 5, 3), covariance.reshape(10, 5, 3, 3)
    )
    np.testing.assert_array_equal(
        shaped.flatten(), M.squared_mahalanobis(target - mean, covariance)
    )
    assert shaped.shape == (10, 5)


def test_a_square_batch_of_variances_is_not_taken_for_a_covariance():
    """Three errors of three axes: (3, 3) are variances, (3, 3, 3) covariances."""
    error = torch.ones(3, 3)
    var = torch.arange(1.0, 10).reshape(3, 3)
    torch.testing.assert_close(
        M.squared_mahalanobis(error, var), (1 / var).sum(1), check_dtype=False
    )


def test_nees_is_in_its_band_as_often_as_it_says():
    """2,000 data sets: a std error of 0.5 %; 4 of them."""
    low, high = M.chi_square_band(3, count=20)
    values = M.squared_mahalanobis(*_errors_of(drawn(40_000))).reshape(2000, 20).mean(1)
    inside = ((low <= values) & (values <= high)).double().mean().item()
    assert inside == pytest.approx(0.95, abs=0.02)
    too_sure = ((low <= 1.5 * values) & (1.5 * values <= high)).double().mean().item()
    assert too_sure < 0.5


def _errors_of(data):
    mean, covariance, target = data
    return target - mean, covariance


@pytest.mark.parametrize("dof", [1, 2, 3, 6, 7, 20, 100, 1000, 60_000, 1_000_000])
def test_quantiles_are_those_of_scipy(dof):
    for tail in (1e-12, 1e-9, 1e-6, 0.001, 0.025, 0.05, 0.3, 0.5):
        below, above = M.chi_square_quantile(tail, dof), M.chi_square_quantile(1 - tail, dof)
        assert below == pytest.approx(stats.chi2.ppf(tail, dof), rel=1e-9)
        # 1 - tail is rounded, so that its distance from 1 is what counts.
        assert above == pytest.approx(stats.chi2.isf(1 - (1 - tail), dof), rel=1e-9)


@pytest.mark.parametrize(("dof", "count", "level"), [(2, 1, 0.95), (3, 50, 0.9), (6, 7, 0.999)])
def test_bands_are_those_of_scipy(dof, count, level):
    expected = np.array(stats.chi2.interval(level, dof * count)) / count
    found = M.chi_square_band(dof, count=count, level=level)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


ONES, EYE = torch.ones(4, 2), torch.eye(2).expand(4, 2, 2)
MISTAKES = {
    "target shape": (lambda: M.nees(ONES, EYE, ONES[:, :1]), "`mean` has shape (4, 2) and"),
    "covariance": (lambda: M.nees(ONES, EYE[:3], ONES), "give (..., d) and (..., d, d)"),
    "one matrix": (lambda: M.nis(ONES, EYE[0]), "`covariance` has shape (2, 2)"),
    "number": (lambda: M.nis(torch.tensor(1.0), torch.tensor(1.0)), "`innovation` has shape ()"),
    "singular": (lambda: M.nis(ONES, 0 * EYE), "not positive definite in 4 of 4 entries"),
    "negative": (lambda: M.nis(ONES, -ONES), "not positive definite in 4 of 4 entries"),
    "nan": (lambda: M.nis(ONES * float("nan"), EYE), "`innovation` is NaN or infinite in 8 of 8"),
    "level": (lambda: M.chi_square_band(2, level=95), "`level` is 95"),
    "dof": (lambda: M.chi_square_quantile(0.5, 0), "`dof` is 0"),
    "array": (lambda: M.nis(ONES.numpy(), EYE), "`innovation` is a ndarray; pass a torch tensor"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError)) as found:
        call()
    assert message in str(found.value)
