"""Coverage, sharpness, calibration curve and ENCE against scipy and plain loops."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import howsure.metrics as M


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(4)
    mean = torch.randn(30, 11, generator=g, dtype=torch.float64)
    var = torch.rand(30, 11, generator=g, dtype=torch.float64) + 0.1
    target = mean + var.sqrt() * 1.4 * torch.randn(30, 11, generator=g, dtype=torch.float64) + 0.2
    return mean, var, target


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_coverage_counts_targets_inside(data, level):
    mean, var, target = (x.numpy() for x in data)
    low, high = scipy.stats.norm.interval(level, mean, np.sqrt(var))
    assert M.coverage(*data, level=level).item() == ((low <= target) & (target <= high)).mean()


def test_coverage_of_zero_variance_counts_exact_hits():
    assert M.coverage(torch.ones(2), torch.zeros(2), torch.tensor([1.0, 2.0])).item() == 0.5


def test_sharpness_is_the_root_of_the_mean_variance(data):
    assert M.sharpness(data[1]).item() == pytest.approx(np.sqrt(data[1].numpy().mean()), rel=1e-12)


def _observed(data, levels):
    mean, var, target = (x.numpy().flatten() for x in data)
    return np.array(
        [(target <= scipy.stats.norm.ppf(p, mean, np.sqrt(var))).mean() for p in levels]
    )


@pytest.mark.parametrize("levels", [(0.0, 0.1, 0.5, 0.75, 1.0), np.linspace(0, 1, 101).tolist()])
def test_calibration_curve_counts_targets_below_quantiles(data, levels):
    curve = M.calibration_curve(*data, levels=levels)
    np.testing.assert_allclose(curve.levels, levels, rtol=0, atol=1e-12)
    np.testing.assert_allclose(curve.observed, _observed(data, levels), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.2, -3.0])
def test_miscalibration_area_is_the_integral_between_curves(data, shift):
    mean, var, target = data
    shifted = (mean + shift, var, target)
    levels = np.linspace(0, 1, 101)
    # Each segment cut into 400: the only error is at crossings, below 1e-7.
    fine = np.linspace(0, 1, 40_001)
    gap = np.abs(np.interp(fine, levels, _observed(shifted, levels)) - fine)
    expected = scipy.integrate.trapezoid(gap, fine)
    assert M.miscalibration_area(*shifted).item() == pytest.approx(expected, abs=1e-6)


def test_miscalibration_area_of_the_hopeless_is_one_half():
    zeros, ones = torch.zeros(9), torch.ones(9)
    assert M.miscalibration_area(zeros, ones, 50 * ones).item() == pytest.approx(0.5, abs=0.01)


def _ence(data, bins):
    mean, var, target = (x.numpy().flatten() for x in data)
    total = 0
    for members in np.array_split(np.argsort(var), bins):
        std = np.sqrt(var[members].mean())
        total += abs(std - np.sqrt(((mean - target)[members] ** 2).mean())) / std
    return total / bins


@pytest.mark.parametrize("bins", [1, 7, 10, 330])
def test_ence_is_its_definition(data, bins):
    assert M.ence(*data, bins=bins).item() == pytest.approx(_ence(data, bins), rel=1e-9)


def test_ence_of_a_constant_variance_does_not_depend_on_the_order(data):
    mean, _, target = data
    var = torch.full_like(mean, 0.5)
    assert torch.allclose(M.ence(mean.flip(0), var, target.flip(0)), M.ence(mean, var, target))
    expected = abs(0.5**0.5 - M.rmse(mean, target)) / 0.5**0.5
    assert M.ence(mean, var, target).item() == pytest.approx(expected.item(), rel=1e-9)


def test_spread_curve_pools_to_sharpness_and_rmse(data):
    curve = M.spread_curve(*data, bins=10)
    assert (curve.std.diff() > 0).all()
    pooled = [x.square().mean().sqrt() for x in curve]
    assert pooled[0].item() == pytest.approx(M.sharpness(data[1]).item(), rel=1e-9)
    assert pooled[1].item() == pytest.approx(M.rmse(data[0], data[2]).item(), rel=1e-9)


def test_calibrated_predictions_look_calibrated():
    g = torch.Generator().manual_seed(6)
    var = torch.rand(200_000, generator=g, dtype=torch.float64) + 0.1
    target = var.sqrt() * torch.randn(200_000, generator=g, dtype=torch.float64)
    calibrated = (torch.zeros_like(target), var, target)
    # Standard errors are about 5e-4 (coverage), 1e-3 (curve) and 5e-3 (a bin of ENCE).
    assert M.coverage(*calibrated, level=0.95).item() == pytest.approx(0.95, abs=0.003)
    assert M.miscalibration_area(*calibrated).item() < 0.003
    assert M.ence(*calibrated).item() < 0.02
