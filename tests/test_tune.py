"""The rate search where the variance is known: it finds the optimum."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import howsure as hs

QUIET = {"model": "dropout", "show_progress": False}
# Steps of 31 %.
RATES = torch.logspace(-1.7, -0.4, 12, dtype=torch.float64).tolist()


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


def held_out(net, count=2000, *, rate, noise, residual_var=0.0):
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


@pytest.mark.parametrize("method", ["gradients", "sampled_adf", "auto"])
def test_a_linear_networks_rate_is_the_optimum(net, method):
    x, y = held_out(net, 600, rate=0.08, noise=0.02)
    sure = hs.Uncertain(net, 0.02, method)
    samples = None if method != "sampled_adf" else 200
    fit = sure.fit([(x[:300], y[:300]), (x[300:], y[300:])], rates=RATES, samples=samples, **QUIET)
    best = minimize_scalar(
        lambda log: nll(net, x, y, odds=math.exp(log), noise=0.02), bounds=(-6, 2), method="bounded"
    )
    expected = math.exp(best.x) / (1 + math.exp(best.x))
    assert abs(math.log(fit.rate / expected)) < math.log(RATES[1] / RATES[0])
    assert abs(fit.best_nll - best.fun) < 0.02
    assert sure.setup.rate == fit.rate


@pytest.mark.filterwarnings("ignore:The best rate")
def test_rate_and_tau_together(net):
    x, y = held_out(net, 1500, rate=0.1, noise=0.09, residual_var=0.5)
    rates = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6)
    fit = hs.Uncertain(net, 0.09, "gradients").fit(
        [(x, y)], fit_residual_var=True, rates=rates, **QUIET
    )
    costs = {}
    for rate in rates:
        found = minimize_scalar(
            lambda log, c=rate / (1 - rate): nll(
                net, x, y, odds=c, noise=0.09, residual_var=math.exp(log)
            ),
            bounds=(-6, 3),
            method="bounded",
        )
        costs[rate] = found.fun, math.exp(found.x)
    best = min(rates, key=lambda rate: costs[rate][0])
    assert fit.rate == best
    assert abs(fit.best_nll - costs[best][0]) < 1e-3
    assert abs(fit.residual_var / costs[best][1] - 1) < 0.05


def test_masks_and_noise_that_make_most_of_the_variance_together(net):
    with torch.no_grad():  # The slopes of halves cancel: noise alone changes the output by little.
        net.first.weight *= 10
        net.first.weight[20:] = net.first.weight[:20] + 0.1 * net.first.weight[20:]
        net.last.weight[:, 20:] = -net.last.weight[:, :20]
    x, y = held_out(net, 600, rate=0.08, noise=1.0)
    fit = hs.Uncertain(net, 1.0, "gradients").fit([(x, y)], rates=RATES, **QUIET)
    assert abs(fit.rate - 0.08) < 0.025


def test_no_rate_where_tau_explains_all(net):
    x, _ = held_out(net, 500, rate=0.0, noise=0.1)
    y = net(x).detach() + 1  # errors that are equally large everywhere
    options = {"fit_residual_var": True, "samples": 20, **QUIET}
    with pytest.warns(UserWarning, match="dropout does not explain") as caught:
        fit = hs.Uncertain(net, None, "mc_dropout").fit([(x, y)], **options)
    assert fit.rate == 0
    assert abs(fit.residual_var - 1) < 0.05
    assert caught[0].filename == __file__


def test_a_grid_of_nothing_but_zero(net):
    x, y = held_out(net, 300, rate=0.0, noise=0.1)
    fit = hs.Uncertain(net, 0.2, "gradients").fit([(x, y)], rates=(0.0,), **QUIET)
    assert fit.rate == 0


def test_a_residual_variance_takes_no_further_pass(net):
    x, y = held_out(net, 50, rate=0.1, noise=0.1)
    y, rows = y + 9 * torch.randn(y.shape), []
    net.first.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    options = {"rates": (0.1, 0.2), "samples": 5, **QUIET}
    passes = []
    for with_residual in (False, None):
        with pytest.warns(UserWarning, match="is the largest that was tried"):
            fit = hs.Uncertain(net, 0.1, "sampled_adf").fit(
                [(x, y)], fit_residual_var=with_residual, **options
            )
        assert (fit.residual_var > 0) is (with_residual is None)
        passes.append(sum(rows))
        rows.clear()
    assert passes[0] == passes[1]


def test_wrong_options_are_named(net):
    x, y = held_out(net, 10, rate=0.1, noise=0.1)
    sure = hs.Uncertain(net, 0.1, "gradients")
    with pytest.raises(ValueError, match="`objective` must be one of"):
        sure.fit([(x, y)], objective="fast")
    with pytest.raises(ValueError, match="`floor` must be a variance"):
        sure.fit([(x, y)], floor=-1.0)
    with pytest.raises(ValueError, match="The rates to try must be numbers from 0"):
        sure.fit([(x, y)], rates=(0.5, 1.0), **QUIET)
    with pytest.raises(ValueError, match=r'`rates` is an option of `fit\(model="dropout"\)`'):
        sure.fit([(x, y)], rates=(0.1,))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sample'"):
        sure.fit([(x, y)], sample=3)
    with pytest.raises(ValueError, match="`samples` must be a whole number"):
        sure.fit([(x, y)], samples=0, **QUIET)
    with pytest.raises(ValueError, match="The targets have shape"):
        sure.fit([(x, y[:, 0])], **QUIET)


def test_no_variance_anywhere_has_no_likelihood(net):
    x, y = torch.zeros(5, 3), torch.ones(5, 1)
    with pytest.raises(ValueError, match="variance is 0 at every rate"):
        hs.Uncertain(net, None, "gradients").fit([(x, y)], **QUIET)
