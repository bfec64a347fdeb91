"""Sparsification, risk-coverage, AUROC and rank correlation against definitions and libraries."""

import itertools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

import howsure.metrics as M


@pytest.fixture(params=["distinct", "ties"])
def data(request):
    g = torch.Generator().manual_seed(10)
    uncertainty = torch.rand(12, 10, generator=g, dtype=torch.float64)
    error = (uncertainty * torch.randn(12, 10, generator=g, dtype=torch.float64)).abs()
    if request.param == "ties":
        uncertainty = (5 * uncertainty).round()
    return error, uncertainty


def _risks(error, uncertainty):
    """Mean error of the k most certain; ties by the mean over orders, as probabilities to be in."""
    error, uncertainty = error.flatten().numpy(), uncertainty.flatten().numpy()
    risks = []
    for k in range(1, len(error) + 1):
        edge = np.sort(uncertainty)[k - 1]
        below, tied = uncertainty < edge, uncertainty == edge
        risks.append((error[below].sum() + error[tied].mean() * (k - below.sum())) / k)
    return np.array(risks)


def test_risk_coverage_curve_is_its_definition(data):
    curve = M.risk_coverage_curve(*data)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 121) / 120)
    np.testing.assert_allclose(curve.risk, _risks(*data), rtol=1e-9)


def test_aurc_is_the_mean_risk(data):
    assert M.aurc(*data).item() == pytest.approx(_risks(*data).mean(), rel=1e-9)


def test_ties_are_the_expectation_over_all_orders():
    error, uncertainty = np.array([3.0, 1.0, 4.0, 1.5, 9.0]), np.array([1, 2, 2, 2, 2])
    orders = [[0, *o] for o in itertools.permutations([1, 2, 3, 4])]
    expected = np.mean([(np.cumsum(error[o]) / np.arange(1, 6)).mean() for o in orders])
    value = M.aurc(torch.tensor(error), torch.tensor(uncertainty)).item()
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_sparsification_curve_is_its_definition(data, normalize):
    error, uncertainty = data
    scale = error.mean().item() if normalize else 1
    curve = M.sparsification_curve(error, uncertainty, normalize=normalize)
    np.testing.assert_allclose(curve.removed, np.arange(120) / 120)
    np.testing.assert_allclose(curve.error, _risks(error, uncertainty)[::-1] / scale, rtol=1e-9)
    np.testing.assert_allclose(curve.oracle, _risks(error, error)[::-1] / scale, rtol=1e-9)


@pytest.mark.parametrize("normalize", [False, True])
def test_ause_is_the_area_between_the_curves(data, normalize):
    error, uncertainty = data
    scale = error.mean().item() if normalize else 1
    expected = (_risks(error, uncertainty) - _risks(error, error)).mean() / scale
    value = M.ause(error, uncertainty, normalize=normalize).item()
    assert value == pytest.approx(expected, rel=1e-9)


def test_ause_is_normalized_by_default(data):
    error, uncertainty = data
    assert torch.allclose(M.ause(10 * error, uncertainty), M.ause(error, uncertainty))


def test_ause_of_the_oracle_is_zero_and_without_errors_undefined(data):
    error, uncertainty = data
    assert M.ause(error, error.square()).item() == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="`normalize=False`"):
        M.ause(torch.zeros_like(error), uncertainty)
    assert M.ause(torch.zeros_like(error), uncertainty, normalize=False).item() == 0


def test_auroc_equals_scikit_learn(data):
    error, uncertainty = data
    positive = error > 0.3
    expected = sklearn.metrics.roc_auc_score(positive.flatten(), uncertainty.flatten())
    assert M.auroc(uncertainty, positive).item() == pytest.approx(expected, rel=1e-9)
    assert M.auroc(uncertainty, positive.int()).item() == pytest.approx(expected, rel=1e-9)


def test_auroc_of_a_constant_is_one_half():
    assert M.auroc(torch.ones(5), torch.tensor([True, False, False, True, False])).item() == 0.5


def test_misclassification_auroc(data):
    uncertainty = data[1].flatten()
    g = torch.Generator().manual_seed(11)
    logits, target = torch.randn(120, 3, generator=g), torch.randint(3, (120,), generator=g)
    wrong = logits.argmax(1) != target
    expected = sklearn.metrics.roc_auc_score(wrong, uncertainty)
    value = M.misclassification_auroc(uncertainty, logits, target)
    assert value.item() == pytest.approx(expected, rel=1e-9)


def test_out_of_distribution_auroc(data):
    inside, outside = data[1].flatten()[:70], data[1].flatten()[70:] + 0.1
    labels = [0] * len(inside) + [1] * len(outside)
    expected = sklearn.metrics.roc_auc_score(labels, torch.cat([inside, outside]))
    value = M.out_of_distribution_auroc(inside.reshape(7, 10), outside)
    assert value.item() == pytest.approx(expected, rel=1e-9)


def test_rank_correlation_equals_scipy(data):
    expected, _ = scipy.stats.spearmanr(data[0].flatten(), data[1].flatten())
    assert M.rank_correlation(*data).item() == pytest.approx(expected, rel=1e-9)


def test_rank_correlation_sees_only_the_order(data):
    error, uncertainty = data
    assert torch.equal(
        M.rank_correlation(error.exp(), uncertainty), M.rank_correlation(error, uncertainty)
    )
    assert M.rank_correlation(error, -error).item() == pytest.approx(-1)
