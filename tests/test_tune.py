"""The closed-form search: right where the variance is known, and near the grid elsewhere."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import nn

import howsure as hs
from howsure.fit import DEFAULT_RATES, settling

STEP = DEFAULT_RATES[2] / DEFAULT_RATES[1]
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
    assert abs(fit.rate - 0.08) < 0.025
    odds = fit.rate / (1 - fit.rate)
    assert nll(net, x, y, odds=odds, noise=noise) - best.fun < 2e-2


def test_rates_that_never_settle_end_at_the_best_pass(net, monkeypatch):
    """Data variance that jumps with the rate: every pass asks for the other side of the jump."""
    x, y = held_out(net, 500, rate=0.1, noise=0.01)
    true_terms = settling.terms_of

    def jumping(setup, name, batch):
        terms = true_terms(setup, name, batch)
        huge = 100 * terms.error.mean() * torch.ones_like(terms.data)
        return replace(terms, data=huge if float(terms.odds[0]) > 0.05 else terms.data)

    monkeypatch.setattr(settling, "terms_of", jumping)
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
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        (net(x[:300]) - y[:300]).square().mean().backward()
        optimiser.step()
    return net.eval(), x[300:], y[300:]


@pytest.mark.parametrize("method", ["mc_dropout", "sampled_adf", "gradients"])
def test_within_one_step_of_the_grid(trained, method):
    net, x, y = trained
    noise = None if method == "mc_dropout" else 0.01
    rates = {}
    # A variance of few samples is itself noisy, and asks for a larger rate.
    options = {"samples": 300, "fit_residual_var": False, "show_progress": False}
    for search in ("grid", "closed_form"):
        fit = hs.Uncertain(net, noise, method).fit(
            [(x, y)], search=search, rates=DEFAULT_RATES[7:13], **options
        )
        rates[search] = fit.rate
    assert 1 / STEP < rates["closed_form"] / rates["grid"] < STEP, rates
    assert abs(fit.confirmed_nll - fit.best_nll) < 0.15
    assert "by sampling" in str(fit)


def test_a_rate_for_every_layer_is_not_worse(trained, tmp_path):
    net, x, y = trained
    one = hs.Uncertain(net, 0.01, "gradients")
    each = hs.Uncertain(net, 0.01, "gradients")
    single, several = one.fit([(x, y)], **QUIET), each.fit([(x, y)], per_layer=True, **QUIET)
    assert several.best_nll <= single.best_nll + 1e-3
    assert len(several.rate) == 2 and several.sites == ("enter", "inner")
    assert "enter" in str(several)
    each.save(tmp_path / "settings.pt")
    again = hs.Uncertain.load(tmp_path / "settings.pt", net)
    assert torch.equal(again(x).total_var, each(x).total_var)


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


def test_auto_fits_in_closed_form(trained):
    net, x, y = trained
    sure = hs.Uncertain(net, 0.01)
    fit = sure.fit([(x, y)], **QUIET)
    assert fit.rate not in fit.rates, "a rate between those of the grid"
    assert sure(x).notes[0].startswith("method")


def test_class_probabilities_have_no_closed_form():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    sure = hs.Uncertain(net, 0.01, "gradients", task="classification")
    with pytest.raises(ValueError, match="Class probabilities have no closed form"):
        sure.fit([(x, y)], search="closed_form")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best rate may be the smallest
        fit = sure.fit([(x, y)], rates=(0.01, 0.1, 0.5), fit_residual_var=True, show_progress=False)
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
    with pytest.raises(ValueError, match=r"number 1 has no variance.*y\[:, \[0, 2\]\]"):
        hs.Uncertain(model, 0.01, method).fit(
            [(x, y.expand(-1, 3))], samples=9, show_progress=False
        )


@pytest.mark.parametrize("search", ["grid", "closed_form"])
def test_a_rate_at_the_top_brings_a_residual_variance(search, trained):
    net, x, _ = trained
    y = net(x).detach() + 30 * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0))
    options = {"search": search, "samples": 9, "show_progress": False}
    sure = hs.Uncertain(net, 1e-4, "sampled_adf")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = sure.fit([(x, y)], **options)
    assert "is the largest that was tried" in str(caught[0].message)
    assert 300 < fit.residual_var < 2000 and sure.setup.residual_var == fit.residual_var
    with pytest.warns(UserWarning, match="is the largest that was tried"):
        fit = sure.fit([(x, y)], fit_residual_var=False, **options)
    assert fit.residual_var == 0 and fit.rate == pytest.approx(0.9, abs=0.01)


def test_a_gap_between_both_likelihoods_is_explained():
    values = {"rates": (0.1, 0.2), "nll": (-1.3, -1.36), "standard_error": (0.02, 0.02)}
    rest = {"rate": 0.2, "residual_var": 0.0, "objective": "gaussian", "samples": 50, "count": 9}
    far = hs.fit.Fit(**values, **rest, best_nll=-1.36, confirmed_nll=-0.82)
    assert "They differ by 0.54, more than chance (0.06)" in str(far)
    near = hs.fit.Fit(**values, **rest, best_nll=-1.36, confirmed_nll=-1.32)
    assert "They differ" not in str(near)
