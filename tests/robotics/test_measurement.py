"""A prediction becomes a measurement: named axes, exact variances, positive definite."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import howsure as hs
from howsure.prediction import Details
from howsure.robotics import CORRELATION_FLOOR, VAR_FLOOR, Measurement, measurement


def predicted(mean, var, covariance=None):
    mean, var = (torch.as_tensor(t, dtype=torch.float32) for t in (mean, var))
    return hs.Prediction(mean, var, torch.zeros_like(var), details=Details(covariance))


def random_covariance(d, seed=0):
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T + 0.1 * np.eye(d)


def test_of_a_network_has_its_mean_variances_and_correlations():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    p = hs.Uncertain(model, hs.noise.std(0.1), "gradients", residual_var=1e-4)(torch.randn(4, 8))
    m = measurement(p, ("x", "y", "yaw"), row=2)
    np.testing.assert_allclose(m.mean, p.mean[2].numpy(), rtol=1e-6)
    np.testing.assert_allclose(np.diag(m.covariance), p.total_var[2].numpy(), rtol=1e-6)
    np.testing.assert_allclose(m.covariance, p.covariance[2].numpy(), rtol=1e-4)
    assert abs(m.covariance[0, 1]) > 0.01 * m.covariance[0, 0]  # else the line above says little
    assert m["yaw"] == pytest.approx(float(p.mean[2, 2]))


def test_outputs_without_an_axis_are_left_out():
    covariance = torch.tensor([[[4.0, 1.0, 0.5], [1.0, 9.0, 2.0], [0.5, 2.0, 16.0]]])
    p = predicted([[1.0, 2.0, 3.0]], [[4.0, 9.0, 16.0]], covariance)
    m = measurement(p, ("yaw", None, "x"))
    assert m.axes == ("yaw", "x") and m.mean.tolist() == [1, 3]
    np.testing.assert_allclose(m.covariance, [[4, 0.5], [0.5, 16]], rtol=1e-12)


def test_without_a_covariance_axes_are_uncorrelated():
    m = measurement(predicted([[1.0, 2.0]], [[4.0, 9.0]]), ("x", "y"))
    np.testing.assert_allclose(m.covariance, [[4, 0], [0, 9]])


def test_a_prediction_of_the_whole_call_needs_no_row():
    model = nn.Linear(5, 2).eval()
    p = hs.Uncertain(model, 0.01, "gradients", batch_dim=None)(torch.randn(5))
    assert p.mean.shape == (2,)
    np.testing.assert_allclose(
        measurement(p, ("x", "y")).covariance, p.covariance[0].numpy(), rtol=1e-4, atol=1e-9
    )


def test_the_covariance_has_the_variances_of_the_prediction():
    """Where they disagree, as after a rescaling of one alone, the correlations are kept."""
    covariance = torch.tensor([[[1.0, 0.5], [0.5, 1.0]]])
    m = measurement(predicted([[0.0, 0.0]], [[4.0, 9.0]], covariance), ("x", "y"))
    np.testing.assert_allclose(m.covariance, [[4, 3], [3, 9]], rtol=1e-12)


@pytest.mark.parametrize("correlation", [1.0, -1.0, 1.0001, 0.9999999])
def test_singular_covariances_become_definite_and_keep_their_variances(correlation):
    off = 2 * 3 * correlation
    p = predicted([[0.0, 0.0]], [[4.0, 9.0]], torch.tensor([[[4.0, off], [off, 9.0]]]))
    m = measurement(p, ("x", "y"))
    np.testing.assert_allclose(np.diag(m.covariance), [4, 9], rtol=1e-12)
    scaled = m.covariance / np.outer([2, 3], [2, 3])
    assert np.linalg.eigvalsh(scaled)[0] == pytest.approx(CORRELATION_FLOOR, rel=1e-6)


def test_variances_below_the_floor_are_raised_to_it():
    p = predicted([[0.0, 0.0]], [[0.0, 1e-12]], torch.zeros(1, 2, 2))
    np.testing.assert_allclose(measurement(p, "xy").covariance, VAR_FLOOR * np.eye(2))
    np.testing.assert_allclose(measurement(p, "xy", floor=0.25).covariance, 0.25 * np.eye(2))


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    d=st.integers(1, 6),
    rank=st.integers(0, 6),
    scales=st.lists(st.floats(-6, 3), min_size=6, max_size=6),
    seed=st.integers(0, 10**6),
)
def test_every_prediction_gives_a_matrix_that_can_be_inverted(d, rank, scales, seed):
    root = (
        np.random.default_rng(seed).normal(size=(d, rank)) * 10.0 ** np.array(scales[:d])[:, None]
    )
    covariance = torch.tensor(root @ root.T, dtype=torch.float32)[None]
    var = covariance.diagonal(dim1=1, dim2=2)
    m = measurement(predicted(torch.zeros(1, d), var, covariance), "abcdef"[:d])
    assert (m.covariance == m.covariance.T).all()
    std = np.sqrt(np.diag(m.covariance))
    np.testing.assert_allclose(std**2, np.maximum(var[0].double().numpy(), VAR_FLOOR), rtol=1e-9)
    eigenvalues = np.linalg.eigvalsh(m.covariance / np.outer(std, std))
    assert eigenvalues[0] > 0.99 * CORRELATION_FLOOR


def test_ordered_moves_rows_and_columns_together():
    whole = random_covariance(3)
    m = Measurement(np.array([1.0, 2.0, 3.0]), whole, ("x", "y", "yaw"))
    turned = m.ordered(("yaw", "x"))
    assert turned.axes == ("yaw", "x") and turned.mean.tolist() == [3, 1]
    np.testing.assert_array_equal(turned.covariance, whole[np.ix_([2, 0], [2, 0])])
    wide = m.ordered(("z", "y"), unknown_var=50.0)
    np.testing.assert_array_equal(wide.covariance, [[50, 0], [0, whole[1, 1]]])
    with pytest.raises(ValueError, match=r"\['z'\] is not among the axes"):
        m.ordered(("z", "y"))


def test_through_a_linear_map_is_what_samples_do():
    m = Measurement(np.array([1.0, -2.0]), random_covariance(2), ("u", "v"))
    matrix = np.array([[0.5, 0.1], [-0.2, 2.0]])
    mapped = m.through(matrix, ("x", "y"))
    draws = np.random.default_rng(0).multivariate_normal(m.mean, m.covariance, 400_000) @ matrix.T
    # 400,000 samples: a std error of 0.2 % of the variance; 5 of them.
    scale = np.sqrt(np.outer(np.diag(mapped.covariance), np.diag(mapped.covariance)))
    assert (np.abs(np.cov(draws.T) - mapped.covariance) < 5 * 0.0023 * scale).all()
    np.testing.assert_allclose(mapped.mean, matrix @ m.mean)
    np.testing.assert_array_equal(m.through(matrix, "xy", mean=[7, 8]).mean, [7, 8])


def test_repr_is_one_line():
    m = Measurement(np.array([1.2, 0.1]), np.diag([0.0009, 0.0004]), ("x", "yaw"))
    assert repr(m) == "Measurement(x 1.2 ± 0.03, yaw 0.1 ± 0.02)"


ONE = predicted([[1.0, 2.0]], [[1.0, 1.0]])
MISTAKES = {
    "several inputs": (predicted(torch.zeros(3, 2), torch.ones(3, 2)), {}, "`row=`"),
    "too few names": (predicted([[1.0, 2.0, 3.0]], [[1.0] * 3]), {}, "has 3 numbers and `axes` 2"),
    "nan": (predicted([[1.0, float("nan")]], [[1.0, 1.0]]), {}, "NaN, infinite"),
    "infinite": (predicted([[1.0, 1.0]], [[1.0, float("inf")]]), {}, "NaN, infinite"),
    "negative": (predicted([[1.0, 1.0]], [[1.0, -1.0]]), {}, "negative variance"),
    "floor": (ONE, {"floor": 0.0}, "`floor` is 0.0"),
    "several outputs": (
        hs.Prediction(*({"a": torch.ones(1, 2), "b": torch.ones(1, 1)} for _ in range(3))),
        {},
        "has 2 floating-point tensors",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    p, options, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        measurement(p, ("x", "y"), **options)


@pytest.mark.parametrize(
    ("mean", "covariance", "axes", "message"),
    [
        ([0, 0], np.eye(2), ("x", "x"), "name each axis once"),
        ([0, 0], np.eye(2), ("x",), r"1 axes need a mean of shape \(1,\)"),
        ([0, 0], [[1, 2], [2, 1]], ("x", "y"), "not positive definite"),
        ([0, 0], [[1, 0.5], [0.2, 1]], ("x", "y"), "not symmetric"),
        ([0, np.nan], np.eye(2), ("x", "y"), "NaN or infinite"),
    ],
)
def test_a_measurement_that_is_no_gaussian_is_refused(mean, covariance, axes, message):
    with pytest.raises(ValueError, match=message):
        Measurement(np.array(mean), np.array(covariance), axes)


def test_a_map_of_the_wrong_shape_or_without_rank_is_refused():
    m = Measurement(np.zeros(2), np.eye(2), ("x", "y"))
    with pytest.raises(ValueError, match=r"it needs \(1, 2\)"):
        m.through(np.eye(2), ("x",))
    with pytest.raises(ValueError, match="not positive definite"):
        m.through([[1, 0], [1, 0]], ("x", "y"))
