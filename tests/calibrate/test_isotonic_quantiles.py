"""Recalibrated quantiles against scikit-learn's isotonic regression and scipy's quantiles."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.isotonic import IsotonicRegression

import howsure as hs
from howsure.calibrate import CalibratedPrediction, IsotonicQuantiles, VarianceScale


def skewed(n, shape=(), *, std=1.0, seed=0):
    """Errors that are skewed and biased: exponential, where the prediction says Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(n, *shape, generator=generator).double() + 0.5
    error = -torch.log(torch.rand(n, *shape, generator=generator).double()) * spread
    zero = torch.zeros_like(spread)
    return hs.Prediction(zero, (std * spread).square(), zero), error


def test_levels_are_those_of_isotonic_regression_on_kuleshovs_pairs():
    prediction, target = skewed(300)
    fitted = IsotonicQuantiles.fit(prediction, target)
    promised = stats.norm.cdf((target / prediction.std).numpy())
    shares = np.array([np.sum(promised <= p) for p in promised]) / 301
    regression = IsotonicRegression().fit(promised, shares)
    torch.testing.assert_close(
        fitted.cdf(prediction, target), torch.tensor(regression.predict(promised))
    )


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.777, 0.99])
def test_quantiles_are_those_of_the_scores(p):
    prediction, target = skewed(200)
    fitted = IsotonicQuantiles.fit(prediction, target)
    z = np.quantile((target / prediction.std).numpy(), p, method="weibull")
    torch.testing.assert_close(fitted.quantile(prediction, p), prediction.std * z)


def test_cdf_and_quantile_are_inverse():
    prediction, target = skewed(99)
    fitted = IsotonicQuantiles.fit(prediction, target)
    for p in (0.01, 0.3, 0.654321, 0.99):
        level = fitted.cdf(prediction, fitted.quantile(prediction, p))
        torch.testing.assert_close(level, torch.full_like(level, p))


def test_calibrates_what_no_gaussian_can():
    fitted = IsotonicQuantiles.fit(*skewed(2000))
    prediction, target = skewed(20000, seed=1)
    for level in (0.5, 0.9, 0.98):
        low, high = fitted.interval(prediction, level)
        below, above = (target < low).double().mean(), (target > high).double().mean()
        # Standard errors: sqrt(0.25 / 2000) of the fit, less of the test data; 5 of them.
        assert abs(below - (1 - level) / 2) < 0.056 and abs(above - (1 - level) / 2) < 0.056
    scale = VarianceScale.fit(*skewed(2000))
    low, _ = scale.interval(prediction, 0.5)
    assert (target < low).double().mean() < 0.05  # where a quarter should be


def test_a_std_that_is_far_too_small_does_no_harm():
    right = IsotonicQuantiles.fit(*skewed(500))
    small = IsotonicQuantiles.fit(*skewed(500, std=1e-3))
    (a, _), (b, _) = skewed(10, seed=2), skewed(10, std=1e-3, seed=2)
    for one, two in zip(right.interval(a, 0.9), small.interval(b, 0.9), strict=True):
        torch.testing.assert_close(one, two)


def test_per_output_and_images():
    prediction, target = skewed(60, (2, 3, 4))
    target[:, 1] *= 5
    fitted = IsotonicQuantiles.fit(prediction, target, per_output=True)
    assert fitted.z.shape == (2, 720) and fitted.count == 720
    for k in range(2):
        parts = (prediction.mean, prediction.data_var, prediction.model_var)
        part = hs.Prediction(*(tensor[:, k] for tensor in parts))
        alone = IsotonicQuantiles.fit(part, target[:, k])
        torch.testing.assert_close(
            fitted.interval(prediction, 0.9)[1][:, k], alone.interval(part, 0.9)[1]
        )
        torch.testing.assert_close(
            fitted.cdf(prediction, target)[:, k], alone.cdf(part, target[:, k])
        )
    with pytest.raises(ValueError, match=r"fitted for 2 outputs; this prediction has shape"):
        fitted.interval(skewed(5)[0], 0.9)


def test_what_n_points_cannot_tell_is_refused_or_bounded():
    prediction, target = skewed(19)
    fitted = IsotonicQuantiles.fit(prediction, target)
    low, high = fitted.interval(prediction, 0.9)  # exactly the outermost points
    z = (target / prediction.std).sort().values
    torch.testing.assert_close(low, prediction.std * z[0])
    torch.testing.assert_close(high, prediction.std * z[-1])
    with pytest.raises(ValueError, match=r"needs at least 39 held-out points; there are 19"):
        fitted.interval(prediction, 0.95)
    assert IsotonicQuantiles.fit(*skewed(39)).interval(prediction, 0.95)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fitted.quantile(prediction, 1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fitted.interval(prediction, 0.0)
    torch.testing.assert_close(
        fitted.cdf(prediction, torch.tensor(1e9)), torch.full((19,), 0.95).double()
    )
    torch.testing.assert_close(
        fitted.cdf(prediction, torch.tensor(-1e9)), torch.full((19,), 0.05).double()
    )


def test_ties_count_as_not_above():
    zero, one = torch.zeros(5).double(), torch.ones(5).double()
    prediction = hs.Prediction(zero, one, zero)
    fitted = IsotonicQuantiles.fit(prediction, torch.tensor([1.0, 1, 1, 2, 2]))
    at = hs.Prediction(zero[:4], one[:4], zero[:4])
    levels = fitted.cdf(at, torch.tensor([0.0, 1.0, 1.5, 2.0]))
    torch.testing.assert_close(levels, torch.tensor([1 / 6, 3 / 6, 3.5 / 6, 5 / 6]).double())


def test_as_a_prediction():
    prediction, target = skewed(200)
    fitted = IsotonicQuantiles.fit(prediction, target)
    after = fitted(prediction)
    assert isinstance(after, CalibratedPrediction) and torch.equal(after.mean, prediction.mean)
    assert torch.equal(after.interval(0.8)[1], fitted.interval(prediction, 0.8)[1])
    assert torch.equal(after.total_var, prediction.total_var)


def test_a_hundred_thousand_points():
    prediction, target = skewed(100_000)
    fitted = IsotonicQuantiles.fit(prediction, target)
    ranks = stats.rankdata((target / prediction.std).numpy(), method="max") / 100_001
    torch.testing.assert_close(fitted.cdf(prediction, target), torch.tensor(ranks))
