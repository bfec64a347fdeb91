"""Classification metrics against scikit-learn, scipy and plain loops."""

import itertools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

import howsure.metrics as M

CLASSES = 4


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(9)
    logits = 2 * torch.randn(150, CLASSES, generator=g, dtype=torch.float64)
    target = torch.multinomial((0.5 * logits).softmax(1), 1, generator=g).squeeze(1)
    return logits.softmax(1), target


def test_accuracy(data):
    probabilities, target = data
    expected = sklearn.metrics.accuracy_score(target.numpy(), probabilities.argmax(1).numpy())
    assert M.accuracy(probabilities, target).item() == pytest.approx(expected)
    assert M.accuracy(probabilities.log() - 7, target).item() == pytest.approx(expected)


def test_categorical_nll_is_log_loss(data):
    probabilities, target = data
    expected = sklearn.metrics.log_loss(target.numpy(), probabilities.numpy())
    assert M.categorical_nll(probabilities, target).item() == pytest.approx(expected, rel=1e-9)


def test_categorical_nll_refuses_probability_zero_and_offers_a_floor():
    probabilities, target = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0])
    with pytest.raises(ValueError, match=r"probability 0 in 1 of 2 rows.*`floor=...`"):
        M.categorical_nll(probabilities, target)
    expected = -(np.log(1e-3) + np.log(0.5)) / 2
    assert M.categorical_nll(probabilities, target, floor=1e-3).item() == pytest.approx(expected)


def test_brier_in_both_conventions(data):
    probabilities, target = data
    options: dict = {"scale_by_half": False}
    expected = sklearn.metrics.brier_score_loss(target.numpy(), probabilities.numpy(), **options)
    total = M.brier(probabilities, target, reduction="sum").item()
    assert total == pytest.approx(expected, rel=1e-9)
    assert M.brier(probabilities, target).item() == pytest.approx(expected / CLASSES, rel=1e-9)


@pytest.mark.parametrize("include_constant", [False, True])
def test_one_hot_nll_averages_gaussian_densities(data, include_constant):
    mean, target = data
    var = 0.01 + mean * (1 - mean)
    one_hot = np.eye(CLASSES)[target]
    per_class = -scipy.stats.norm.logpdf(one_hot, mean.numpy(), var.sqrt().numpy()).mean(0)
    if not include_constant:
        per_class -= 0.5 * np.log(2 * np.pi)
    options = {"include_constant": include_constant}
    np.testing.assert_allclose(
        M.one_hot_nll(mean, var, target, reduction="none", **options), per_class, rtol=1e-9
    )
    value = M.one_hot_nll(mean, var, target, **options)
    assert value.item() == pytest.approx(per_class.mean(), rel=1e-9)


def test_pixels_are_like_rows(data):
    """Shape (batch, classes, height, width), as for `cross_entropy`."""
    probabilities, target = data
    images = probabilities.reshape(5, 6, 5, CLASSES).permute(0, 3, 1, 2)
    labels = target.reshape(5, 6, 5)
    for metric in (M.accuracy, M.brier, M.categorical_nll, M.ece, M.ace):
        assert torch.allclose(metric(images, labels), metric(probabilities, target))
    expected = torch.nn.functional.cross_entropy(images.log(), labels)
    assert M.categorical_nll(images, labels).item() == pytest.approx(expected.item(), rel=1e-9)


def _ece(probabilities, target, bins):
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == target
    total = 0
    for k in range(bins):
        members = (k / bins < confidence) & (confidence <= (k + 1) / bins)
        if members.any():
            total += members.mean() * abs(confidence[members].mean() - correct[members].mean())
    return total


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_is_its_definition(data, bins):
    expected = _ece(data[0].numpy(), data[1].numpy(), bins)
    assert M.ece(*data, bins=bins).item() == pytest.approx(expected, rel=1e-9)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    probabilities = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    curve = M.reliability_curve(probabilities, torch.tensor([0, 0, 1]), bins=4)
    np.testing.assert_allclose(curve.fraction, [0, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(curve.confidence, [np.nan, 0.5, 0.75, 1])
    np.testing.assert_allclose(curve.accuracy, [np.nan, 0, 1, 1])


def test_ece_is_the_area_of_the_reliability_curve(data):
    curve = M.reliability_curve(*data)
    gap = (curve.confidence - curve.accuracy).abs().nan_to_num() @ curve.fraction
    assert gap.item() == pytest.approx(M.ece(*data).item(), rel=1e-9)


def _ace(probabilities, target, bins):
    gaps = []
    for k in range(probabilities.shape[1]):
        column = probabilities[:, k]
        for members in np.array_split(np.argsort(column), bins):
            gaps.append(abs((target[members] == k).mean() - column[members].mean()))
    return np.mean(gaps)


@pytest.mark.parametrize("bins", [1, 7, 15, 150])
def test_ace_is_its_definition(data, bins):
    expected = _ace(data[0].numpy(), data[1].numpy(), bins)
    assert M.ace(*data, bins=bins).item() == pytest.approx(expected, rel=1e-9)


def test_ace_of_a_class_that_never_happens():
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64)
    expected = _ace(probabilities.numpy(), np.array([0, 1]), 2)
    value = M.ace(probabilities, torch.tensor([0, 1]), bins=2)
    assert value.item() == pytest.approx(expected, rel=1e-9)


def test_ace_takes_the_expectation_over_the_order_of_ties():
    column = np.array([0.2, 0.6, 0.6, 0.6, 0.9])
    target = np.array([0, 0, 1, 0, 0])
    orders = [o for o in itertools.permutations(range(5)) if (np.diff(column[list(o)]) >= 0).all()]
    frequency = np.mean([[(target[list(o)][:3] == 0).mean(), (target[list(o)][3:] == 0).mean()]
                         for o in orders], 0)  # fmt: skip
    expected = np.abs(frequency - [column[[0, 1, 2]].mean(), column[[3, 4]].mean()]).mean()
    probabilities = torch.tensor(np.stack([column, 1 - column], 1))
    # The second class is the mirror image, but its bins are cut at the other end.
    mirrored = np.mean([[(target[list(o)][2:] == 1).mean(), (target[list(o)][:2] == 1).mean()]
                        for o in orders], 0)  # fmt: skip
    other = np.abs(mirrored - [(1 - column)[[2, 3, 4]].mean(), (1 - column)[[0, 1]].mean()]).mean()
    value = M.ace(probabilities, torch.tensor(target), bins=2).item()
    assert value == pytest.approx((expected + other) / 2, rel=1e-12)
