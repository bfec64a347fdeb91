"""Point predictions against scikit-learn."""

import pytest
import sklearn.metrics
import torch

import howsure.metrics as M


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(1)
    target = 3 + 2 * torch.randn(40, 5, generator=g, dtype=torch.float64)
    return target + 0.7 * torch.randn(40, 5, generator=g, dtype=torch.float64) + 0.3, target


ORACLES = {
    M.rmse: sklearn.metrics.root_mean_squared_error,
    M.mae: sklearn.metrics.mean_absolute_error,
    M.explained_variance: sklearn.metrics.explained_variance_score,
}


@pytest.mark.parametrize("metric", ORACLES, ids=lambda m: m.__name__)
def test_equals_scikit_learn(metric, data):
    mean, target = data
    expected = ORACLES[metric](target.flatten().numpy(), mean.flatten().numpy())
    assert metric(mean, target).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("metric", ORACLES, ids=lambda m: m.__name__)
def test_weights_equal_scikit_learn(metric, data):
    mean, target = data
    weight = torch.rand(40, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = ORACLES[metric](
        target.flatten().numpy(), mean.flatten().numpy(), sample_weight=weight.flatten().numpy()
    )
    assert metric(mean, target, weight=weight).item() == pytest.approx(expected, rel=1e-9)


def test_explained_variance_ignores_an_offset(data):
    mean, target = data
    assert torch.allclose(
        M.explained_variance(mean + 9, target), M.explained_variance(mean, target)
    )


def test_explained_variance_survives_a_large_mean(data):
    mean, target = data
    expected = M.explained_variance(mean, target)
    shifted = M.explained_variance.stream()
    for part in zip(mean + 1e7, target + 1e7, strict=True):
        shifted.update(*part)
    assert shifted.compute().item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1 / 3, 0.7, -1e9 - 0.1, 1e-200])
@pytest.mark.parametrize("count", [7, 1000, 1_000_000])
def test_explained_variance_refuses_a_constant_target(value, count):
    target = torch.full((count,), value, dtype=torch.float64)
    mean = torch.arange(float(count), dtype=torch.float64)
    running = M.explained_variance.stream()
    for batch in zip(mean.tensor_split(50), target.tensor_split(50), strict=True):
        if len(batch[0]):
            running.update(*batch)
    for compute in (running.compute, lambda: M.explained_variance(mean, target)):
        with pytest.raises(ValueError, match="`target` is constant"):
            compute()


def test_half_precision_is_summed_in_float64():
    ones = torch.ones(100_000, dtype=torch.float16)
    assert ones.sum().isinf()
    assert M.mae(ones, torch.zeros_like(ones)).item() == 1
