"""The Student-t: against scipy, in intervals, distributions and metrics."""

import math

import pytest
import torch
from scipy import integrate, stats

import howsure as hs
from howsure.student import DEGREES, best_degrees, central_reach, student_cdf

NU = [3.0, 4.5, 30.0]


def scale_of(var, nu):
    return math.sqrt(var * (nu - 2) / nu)


@pytest.mark.parametrize("nu", NU)
def test_the_distribution_is_that_of_scipy(nu):
    x = torch.linspace(-40, 40, 81, dtype=torch.float64)
    expected = torch.from_numpy(stats.t.cdf(x.numpy(), nu))
    torch.testing.assert_close(student_cdf(x, nu), expected, rtol=0, atol=1e-12)
    for level in (0.1, 0.68, 0.95, 0.9999):
        expected = stats.t.ppf((1 + level) / 2, nu) * scale_of(1, nu)
        assert central_reach(level, nu) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("nu", NU)
def test_scores_are_those_of_scipy(nu):
    mean, var, target = (torch.tensor([each], dtype=torch.float64) for each in (0.5, 2.0, 2.2))
    scale = scale_of(2.0, nu)
    full = hs.metrics.nll(mean, var, target, include_constant=True, degrees_of_freedom=nu)
    assert float(full) == pytest.approx(-stats.t.logpdf(1.7, nu, scale=scale))

    def gap(x):
        return (stats.t.cdf(x / scale, nu) - (x >= 1.7)) ** 2

    expected = integrate.quad(gap, -500, 1.7, limit=200)[0] + integrate.quad(gap, 1.7, 500)[0]
    crps = float(hs.metrics.crps(mean, var, target, degrees_of_freedom=nu))
    assert crps == pytest.approx(expected, rel=1e-5)
    reach = stats.t.ppf(0.975, nu) * scale
    coverage = hs.metrics.coverage(mean, var, mean + 0.999 * reach, degrees_of_freedom=nu)
    assert float(coverage) == 1
    outside = hs.metrics.coverage(mean, var, mean + 1.001 * reach, degrees_of_freedom=nu)
    assert float(outside) == 0


def test_without_a_variance_there_is_no_score():
    one = torch.ones(3)
    with pytest.raises(ValueError, match="above 2"):
        hs.metrics.nll(one, one, one, degrees_of_freedom=2.0)


@pytest.mark.parametrize("nu", [3.0, 7.0, math.inf])
def test_the_degrees_of_freedom_come_back(nu):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(20000, generator=generator, dtype=torch.float64)
    errors = normal
    if nu < math.inf:
        chi = torch.randn(20000, int(nu), generator=generator, dtype=torch.float64)
        errors = normal / (chi.square().mean(1)).sqrt() * scale_of(1, nu)
    found = best_degrees(errors.square(), torch.ones_like(errors))
    near = DEGREES.index(found) - DEGREES.index(nu)
    assert abs(near) <= 1


def test_a_prediction_has_intervals_and_a_distribution_of_its_variance():
    mean, var = torch.zeros(2, 1), torch.full((2, 1), 4.0)
    p = hs.Prediction(mean, var / 2, var / 2, degrees_of_freedom=5.0)
    low, high = p.interval(0.9)
    law = p.distribution()
    assert isinstance(law, torch.distributions.StudentT)
    torch.testing.assert_close(law.variance, p.total_var)
    assert float(high[0]) == pytest.approx(stats.t.ppf(0.95, 5, scale=scale_of(4, 5)), rel=1e-5)
    torch.testing.assert_close(low, -high)
    assert p[0].degrees_of_freedom == 5 and p.to(torch.float64).degrees_of_freedom == 5


def test_fit_finds_heavy_tails():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(1500, 2)
    with torch.no_grad():
        errors = torch.distributions.StudentT(3.0).sample((1500, 1))
        y = net(x) + 0.1 * errors
    sure = hs.Uncertain(net.eval(), 1e-6)
    fit = sure.fit([(x[:1000], y[:1000])], show_progress=False)
    assert fit.model.degrees_of_freedom <= 5 and "Student-t" in str(fit)
    p = sure(x[1000:])
    gaussian = hs.metrics.nll(p.mean, p.total_var, y[1000:])
    student = hs.metrics.nll(p.mean, p.total_var, y[1000:], degrees_of_freedom=p.degrees_of_freedom)
    assert float(student) < float(gaussian) - 0.05
    low, high = p.interval(0.95)
    assert 0.92 < float(((low < y[1000:]) & (y[1000:] < high)).double().mean()) < 0.98
