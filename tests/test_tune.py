"""The closed-form search where the variance is known: it finds the optimum."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import nn

import howsure as hs
from howsure.fit import dropout

QUIET = {"show_progress": False, "samples": 0}


class TwoLayers(nn.Module):
    """y = w2 (w1 x): dropout after the first layer alone, so that variances have a closed form."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 40, bias=False), nn.Linear(40, 1, bias=False)

    def forward(self, x):
        return self.last(self.first(x))

    def parts(self, x):
        """Data variance for unit noise, model variance for odds of 1, and their product's."""
        first, last = self.first.weight, self.last.weight
        with torch.no_grad():
            by_mask = (last * self.first(x)).square().sum(1, keepdim=True)
            both = (last.square() @ first.square()).sum()
            return (last @ first).square().sum().expand_as(by_mask), by_mask, both


def held_out(net, count=4000, *, rate, noise, residual_var=0.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, generator=generator)
    data, model, both = net.parts(x)
    odds = rate / (1 - rate)
    var = noise * data + odds * (model + noise * both) + residual_var
    with torch.no_grad():
        y = net(x) + var.sqrt() * torch.randn(var.shape, generator=generator)
    return x, y


def nll(net, x, y, *, odds, noise, residual_var=0.0):
    data, model, both = (part.double() for part in net.parts(x))
    total = noise * data + odds * (model + noise * both) + residual_var
    with torch.no_grad():
        error = (y - net(x)).double().square()
    return float((0.5 * total.log() + error / (2 * total)).mean())


@pytest.fixture
def net():
    torch.manual_seed(0)
    return TwoLayers().eval()


def test_a_linear_networks_rate_is_the_optimum(net):
    x, y = held_out(net, rate=0.08, noise=0.02)
    sure = hs.Uncertain(net, 0.02, "gradients")
    fit = sure.fit([(x[:1000], y[:1000]), (x[1000:], y[1000:])], **QUIET)
    best = minimize_scalar(
        lambda log: nll(net, x, y, odds=math.exp(log), noise=0.02), bounds=(-6, 2), method="bounded"
    )
    expected = math.exp(best.x) / (1 + math.exp(best.x))
    # The part that noise and masks make together is taken at the rate of the last pass.
    assert abs(fit.rate - expected) < 0.01 * expected
    assert abs(fit.best_nll - best.fun) < 1e-3
    assert abs(fit.rate - 0.08) < 0.02, "and near the rate that made the targets"
    assert sure.setup.rate == fit.rate


def test_rate_tau_and_noise_together(net):
    x, y = held_out(net, 5000, rate=0.1, noise=0.09, residual_var=0.5)
    sure = hs.Uncertain(net, 0.03, "gradients")
    # The noise and tau make the same constant variance in a linear network: fit one of them.
    fit = sure.fit([(x, y)], fit_noise=True, **QUIET)
    best = minimize(
        lambda v: nll(net, x, y, odds=math.exp(v[0]), noise=math.exp(v[1])),
        [-2.0, -2.0],
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-10},
    )
    assert abs(fit.best_nll - best.fun) < 2e-3  # the error of a few points in three dimensions
    assert abs(0.03 * fit.noise_scale / math.exp(best.x[1]) - 1) < 0.05
    data, _, both = net.parts(x[:5])
    expected = fit.noise_scale * 0.03 * (data + fit.rate / (1 - fit.rate) * both)
    sure.setup = sure.setup.with_(samples=512)
    torch.testing.assert_close(sure(x[:5]).data_var, expected, rtol=0.1, atol=0)
    with_residual_var = hs.Uncertain(net, 0.09, "gradients").fit(
        [(x, y)], fit_residual_var=True, **QUIET
    )
    best = minimize(
        lambda v: nll(net, x, y, odds=math.exp(v[0]), noise=0.09, residual_var=math.exp(v[1])),
        [-2.0, -1.0],
        method="Nelder-Mead",
    )
    assert abs(with_residual_var.best_nll - best.fun) < 1e-4
    assert abs(with_residual_var.residual_var / math.exp(best.x[1]) - 1) < 0.05


@pytest.mark.parametrize("noise", [1.0, 200.0])
def test_a_rate_is_believed_only_near_a_pass(net, noise):
    """Masks and noise together make most of the variance: a pass at one rate misleads at others."""
    with torch.no_grad():  # The slopes of halves cancel: noise alone changes the output by little.
        net.first.weight *= 10
        net.first.weight[20:] = net.first.weight[:20] + 0.1 * net.first.weight[20:]
        net.last.weight[:, 20:] = -net.last.weight[:, :20]
    x, y = held_out(net, rate=0.08, noise=noise)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The rate did not settle")
        fit = hs.Uncertain(net, noise, "gradients").fit([(x, y)], **QUIET)
    best = minimize_scalar(
        lambda log: nll(net, x, y, odds=math.exp(log), noise=noise),
        bounds=(-6, 2),
        method="bounded",
    )
    # Under the stronger noise the grid decides, up to two of its steps away.
    assert abs(fit.rate - 0.08) < (0.025 if noise == 1 else 0.06)
    odds = fit.rate / (1 - fit.rate)
    assert nll(net, x, y, odds=odds, noise=noise) - best.fun < (0.02 if noise == 1 else 0.08)


def test_rates_that_never_settle_end_at_the_best_pass(net, monkeypatch):
    """Data variance that jumps with the rate: every pass asks for the other side of the jump."""
    x, y = held_out(net, 500, rate=0.1, noise=0.01)
    true_terms = dropout.terms_of

    def jumping(setup, name, batch):
        terms = true_terms(setup, name, batch)
        huge = 100 * terms.error.mean() * torch.ones_like(terms.data)
        return replace(terms, data=huge if float(terms.odds[0]) > 0.05 else terms.data)

    monkeypatch.setattr(dropout, "terms_of", jumping)
    with pytest.warns(UserWarning, match="did not settle within 6 passes") as caught:
        fit = hs.Uncertain(net, 0.01, "gradients").fit([(x, y)], **QUIET)
    assert 0.02 < fit.rate <= 0.05, "the bracket closes in on the jump from below"
    assert caught[0].filename == __file__


def test_no_rate_where_tau_explains_all(net):
    x, _ = held_out(net, rate=0.0, noise=0.1)
    y = net(x).detach() + 1  # errors that are equally large everywhere
    options = {"search": "closed_form", "fit_residual_var": True, **QUIET}
    with pytest.warns(UserWarning, match="dropout does not explain") as caught:
        fit = hs.Uncertain(net, None, "mc_dropout").fit([(x, y)], **options)
    assert fit.rate == 0
    assert abs(fit.residual_var - 1) < 0.05
    assert caught[0].filename == __file__


def test_a_grid_of_nothing_but_zero(net):
    x, y = held_out(net, rate=0.0, noise=0.1)
    for options in ({}, {"fit_noise": True}):
        fit = hs.Uncertain(net, 0.2, "gradients").fit([(x, y)], rates=(0.0,), **options, **QUIET)
        assert fit.rate == 0
    assert abs(fit.noise_scale - 0.5) < 0.05


def test_noise_is_scaled_also_without_dropout(net):
    x, y = held_out(net, rate=0.0, noise=0.1)
    with pytest.warns(UserWarning, match="dropout does not explain"):
        fit = hs.Uncertain(net, 0.5, "gradients").fit([(x, y)], fit_noise=True, **QUIET)
    assert abs(fit.noise_scale - 0.2) < 0.02


def test_a_layer_without_influence_gets_no_rate(net):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.noisy, self.end = net, nn.Linear(3, 40, bias=False), nn.Linear(40, 1)

        def forward(self, x):
            return self.net(x) + self.end(torch.relu(self.noisy(x)))

    model = Branch().eval()
    x, _ = held_out(net, rate=0.08, noise=0.02)
    with torch.no_grad():
        _, by_mask, _ = net.parts(x)
        y = model(x) + (0.05 * by_mask).sqrt() * torch.randn(len(x), 1)
    fit = hs.Uncertain(model, None, "gradients").fit([(x, y)], per_layer=True, **QUIET)
    rates = dict(zip(fit.sites, fit.rate, strict=True))
    assert abs(rates["net.first"] / (0.05 / 1.05) - 1) < 0.1
    assert rates["noisy"] < 0.003


def test_wrong_options_are_named(net):
    x, y = held_out(net, 10, rate=0.1, noise=0.1)
    sure = hs.Uncertain(net, 0.1, "gradients")
    with pytest.raises(ValueError, match="`search` must be one of"):
        sure.fit([(x, y)], search="fast")
    with pytest.raises(ValueError, match="`floor` must be a variance"):
        sure.fit([(x, y)], floor=-1.0)
    with pytest.raises(ValueError, match="a grid has no room"):
        sure.fit([(x, y)], search="grid", per_layer=True)
    with pytest.raises(ValueError, match='"adf" has no closed form'):
        hs.Uncertain(net, 0.1, "adf").fit([(x, y)], search="closed_form")
    with pytest.raises(TypeError, match="no option `sample`"):
        sure.fit([(x, y)], sample=3)
    with pytest.raises(ValueError, match="The targets have shape"):
        sure.fit([(x, y[:, 0])], **QUIET)


def test_no_variance_anywhere_has_no_likelihood(net):
    x, y = torch.zeros(5, 3), torch.ones(5, 1)
    with pytest.raises(ValueError, match="variance is 0 at every rate"):
        hs.Uncertain(net, None, "gradients").fit([(x, y)], **QUIET)
