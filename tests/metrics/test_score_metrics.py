"""Proper scores of Gaussians against scipy densities and numeric integrals."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import howsure.metrics as M


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(3)
    mean = torch.randn(6, 5, 4, generator=g, dtype=torch.float64)
    var = torch.rand(6, 5, 4, generator=g, dtype=torch.float64) * 2 + 0.05
    target = mean + 1.3 * torch.randn(6, 5, 4, generator=g, dtype=torch.float64)
    return mean, var, target


def test_nll_with_constant_is_minus_the_log_density(data):
    mean, var, target = (x.numpy() for x in data)
    expected = -scipy.stats.norm.logpdf(target, mean, np.sqrt(var)).mean()
    assert M.nll(*data, include_constant=True).item() == pytest.approx(expected, rel=1e-9)


def test_nll_without_constant_is_the_gaussian_nll_loss_of_torch(data):
    mean, var, target = data
    expected = torch.nn.functional.gaussian_nll_loss(mean, target, var, eps=1e-12)
    assert M.nll(mean, var, target).item() == pytest.approx(expected.item(), rel=1e-9)


def test_nll_takes_a_variance_as_in_the_paper():
    """A calibrated variance of 1e-3; the authors' code, variance as scale, scores +495."""
    g = torch.Generator().manual_seed(0)
    target = 1e-3**0.5 * torch.randn(200_000, generator=g, dtype=torch.float64)
    zero, var = torch.zeros_like(target), torch.full_like(target, 1e-3)
    assert M.nll(zero, var, target, include_constant=True).item() == pytest.approx(-2.03, abs=0.01)


def test_nll_refuses_zero_variance_and_offers_a_floor(data):
    mean, var, target = data
    var = var.clone()
    var[0, 0, :3] = 0
    with pytest.raises(ValueError, match=r"`var` is 0 in 3 of 120 entries.*`floor=...`"):
        M.nll(mean, var, target)
    assert torch.equal(M.nll(mean, var, target, floor=0.1), M.nll(mean, var.clamp(min=0.1), target))


def test_nll_has_the_gradient_of_a_loss(data):
    mean, var, target = (x.flatten()[:8] for x in data)
    mean.requires_grad_()
    var.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: M.nll(m, v, target), (mean, var))
    assert torch.autograd.gradcheck(lambda m, v: M.crps(m, v, target), (mean, var))


def _crps_by_integration(mean, std, target):
    """Integral of the squared difference between the distribution function and the step."""
    norm = scipy.stats.norm(mean, std)
    reach = 40 * std
    below, _ = scipy.integrate.quad(lambda x: norm.cdf(x) ** 2, target - reach, target, limit=200)
    above, _ = scipy.integrate.quad(lambda x: norm.sf(x) ** 2, target, target + reach, limit=200)
    return below + above


def test_crps_is_its_integral(data):
    few = [x.flatten()[:15].numpy() for x in data]
    expected = [_crps_by_integration(m, v**0.5, t) for m, v, t in zip(*few, strict=True)]
    value = M.crps(*(torch.from_numpy(x) for x in few)).item()
    assert value == pytest.approx(np.mean(expected), rel=1e-7)


def test_crps_of_zero_variance_is_the_absolute_error():
    mean, target = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.5, -1.0])
    assert M.crps(mean, torch.zeros(3), target).item() == M.mae(mean, target).item() == 1.5


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_interval_score_is_its_definition(data, level):
    mean, var, target = (x.numpy() for x in data)
    low, high = scipy.stats.norm.interval(level, mean, np.sqrt(var))
    penalty = (low - target) * (target < low) + (target - high) * (target > high)
    expected = (high - low + 2 / (1 - level) * penalty).mean()
    assert M.interval_score(*data, level=level).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("score", [M.nll, M.crps, M.interval_score], ids=lambda m: m.__name__)
def test_scores_are_proper(score):
    """The true variance scores better than one 20 percent off."""
    g = torch.Generator().manual_seed(5)
    target = torch.randn(200_000, generator=g, dtype=torch.float64)
    zero, one = torch.zeros_like(target), torch.ones_like(target)
    truth = score(zero, one, target)
    assert truth < score(zero, 1.2 * one, target)
    assert truth < score(zero, one / 1.2, target)
