"""The rate search on trained networks, and where there is no answer."""

import math
import warnings

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.fit import DEFAULT_RATES

STEP = DEFAULT_RATES[2] / DEFAULT_RATES[1]
QUIET = {"model": "dropout", "show_progress": False}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(4, 30), nn.Linear(30, 30), nn.Linear(30, 1)

    def forward(self, x):
        h = torch.relu(self.enter(x))
        return self.leave(h + torch.relu(self.inner(h)))


@pytest.fixture
def trained():
    torch.manual_seed(0)
    net = Residual()
    x = torch.randn(450, 4)
    y = (torch.sin(2 * x[:, :1]) * x[:, 1:2] + 0.3 * x[:, 2:3]) + 0.05 * torch.randn(450, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        (net(x[:300]) - y[:300]).square().mean().backward()
        optimizer.step()
    return net.eval(), x[300:], y[300:]


@pytest.mark.parametrize("noise", [None, 0.01])
def test_gradients_find_the_rate_that_sampling_finds(noise, trained):
    net, x, y = trained
    # A variance of few samples is itself noisy, and asks for a larger rate.
    options = {"rates": DEFAULT_RATES[7:13], "fit_residual_var": False, **QUIET}
    by_sampling, by_gradients = (
        hs.Uncertain(net, noise, method).fit([(x, y)], samples=samples, **options)
        for method, samples in (
            ("mc_dropout" if noise is None else "sampled_adf", 300),
            ("gradients", None),
        )
    )
    assert by_gradients.samples < by_sampling.samples
    assert 1 / STEP <= by_gradients.rate / by_sampling.rate * (1 + 1e-9) <= STEP * (1 + 1e-8)


def test_auto_uses_gradients(trained):
    net, x, y = trained
    sure = hs.Uncertain(net, 0.01)
    fit = sure.fit([(x, y)], rates=(0.01, 0.03, 0.1, 0.3), **QUIET)
    same = hs.Uncertain(net, 0.01, "gradients").fit([(x, y)], rates=fit.rates, **QUIET)
    assert fit.nll == same.nll
    assert sure(x).notes[0].startswith('"auto" chose')


def test_class_probabilities():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    sure = hs.Uncertain(net, 0.01, "gradients", task="classification")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best rate may be the smallest
        fit = sure.fit([(x, y)], rates=(0.01, 0.1, 0.5), fit_residual_var=True, **QUIET)
    assert fit.objective == "one_hot" and fit.rate in fit.rates


@pytest.mark.parametrize(("floor", "used"), [(None, 1e-4), (0.02, 0.02)])
def test_probabilities_that_hardly_vary_do_not_rule_the_search(floor, used):
    """A saturated classifier: without a floor, logarithms of tiny variances are all that counts."""
    torch.manual_seed(0)
    net = nn.Linear(2, 3).eval()
    net.weight.data *= 20
    x = torch.randn(30, 2)
    y = net(x).argmax(1).roll(3)
    sure = hs.Uncertain(net, 0.001, "adf", task="classification")
    fit = sure.fit([(x, y)], floor=floor, show_progress=False)
    found = sure(x)
    assert float(found.total_var.min()) < 1e-8
    expected = hs.metrics.one_hot_nll(found.mean, found.total_var, y, floor=used)
    assert fit.best_nll == pytest.approx(float(expected), rel=1e-5)


def test_a_rate_of_0_has_no_sampled_variance_and_is_not_chosen(trained):
    net, x, y = trained
    fit = hs.Uncertain(net, None, "mc_dropout").fit(
        [(x, y)],
        fit_residual_var=False,
        rates=(0.0, 0.02, 0.1, 0.5),
        samples=5,
        show_progress=False,
    )
    assert fit.nll[0] == math.inf and fit.rate > 0


class PartlyConstant(nn.Module):
    """Its second output does not depend on the input."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        return torch.cat([y, torch.zeros_like(y), 2 * y], 1)


@pytest.mark.parametrize("method", ["gradients", "sampled_adf", "auto"])
def test_an_output_that_nothing_reaches_is_named(method, trained):
    net, x, y = trained
    model = PartlyConstant(net).eval()
    with pytest.raises(ValueError, match=r"Output 1 of 3 .*has no variance.*y\[:, \[0, 2\]\]"):
        hs.Uncertain(model, 0.01, method).fit([(x, y.expand(-1, 3))], samples=9, **QUIET)


def test_a_rate_at_the_top_brings_a_residual_variance(trained):
    net, x, _ = trained
    y = net(x).detach() + 30 * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0))
    options = {"samples": 9, "show_progress": False}
    sure = hs.Uncertain(net, 1e-4, "sampled_adf")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = sure.fit([(x, y)], **options)
    assert "is the largest that was tried" in str(caught[0].message)
    assert 300 < fit.residual_var < 2000 and sure.setup.residual_var == fit.residual_var
    with pytest.warns(UserWarning, match="is the largest that was tried"):
        fit = sure.fit([(x, y)], fit_residual_var=False, **options)
    assert fit.residual_var == 0 and fit.rate == pytest.approx(0.9, abs=0.01)
