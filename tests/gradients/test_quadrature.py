"""The quadrature against rectifiers and polynomials, whose variances are known."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from howsure.estimators.designs import RHO, design, draw, linear_form, variance_form

CORRELATIONS = torch.tensor(
    [[1, -1, RHO, -RHO], [-1, 1, -RHO, RHO], [RHO, -RHO, 1, -1], [-RHO, RHO, -1, 1]],
    dtype=torch.float64,
)


def expected(h, form):
    """What the form gives on average for a function whose h is known."""
    return float((form * torch.tensor([[h(float(r)) for r in row] for row in CORRELATIONS])).sum())


@pytest.mark.parametrize("order", [1, 2])
def test_linear_and_quadratic_functions_are_exact(order):
    assert expected(lambda rho: order * rho ** (order - 1), variance_form()) == pytest.approx(1)


@pytest.mark.parametrize(("order", "within"), [(3, 0.02), (4, 0.12), (5, 0.4)])
def test_higher_orders_are_near(order, within):
    found = expected(lambda rho: order * rho ** (order - 1), variance_form())
    assert found == pytest.approx(1, abs=within)


def test_the_linear_part_is_first_order_alone():
    for order, share in ((1, 1), (2, 0), (3, 0)):
        found = expected(lambda rho, k=order: k * rho ** (k - 1), linear_form())
        assert found == pytest.approx(share, abs=1e-6)


def rectifier(t):
    """h and the variance of relu(z + t)."""

    def h(rho):
        if abs(rho) == 1:
            return norm.cdf(t) if rho > 0 else max(0.0, norm.cdf(t) - norm.cdf(-t))
        return multivariate_normal.cdf([t, t], cov=[[1, rho], [rho, 1]])

    mean = t * norm.cdf(t) + norm.pdf(t)
    return h, (t * t + 1) * norm.cdf(t) + t * norm.pdf(t) - mean**2


@pytest.mark.parametrize("t", np.arange(-2.5, 2.1, 0.5))
def test_rectifiers_are_right_to_a_percent(t):
    h, variance = rectifier(t)
    within = 0.011 if t >= -2 else 0.04
    assert expected(h, variance_form()) / variance == pytest.approx(1, abs=within)


def test_points_have_their_correlations():
    block = design(noise=True, multipliers=False)
    torch.testing.assert_close(block.noise @ block.noise.T, CORRELATIONS, atol=1e-6, rtol=0)
    z = draw(block.noise, (20_000,), range(3), 0, 0).reshape(12, -1).double()
    found = z @ z.T / z.shape[1]
    torch.testing.assert_close(found[:4, :4], CORRELATIONS, atol=0.04, rtol=0)
    torch.testing.assert_close(found[:4, 4:], torch.zeros(4, 8).double(), atol=0.04, rtol=0)


def test_blocks_and_sources_have_streams_of_their_own():
    block = design(noise=True, multipliers=False)
    several = draw(block.noise, (5,), range(2, 5), 7, 1)
    assert torch.equal(several[1], draw(block.noise, (5,), range(3, 4), 7, 1)[0])
    assert not torch.equal(several[1], draw(block.noise, (5,), range(3, 4), 8, 1)[0])
    assert not torch.equal(several[1], draw(block.noise, (5,), range(3, 4), 7, 2)[0])


def test_with_noise_and_masks_four_points_share_a_mask():
    block = design(noise=True, multipliers=True)
    assert block.points == 16
    masks, noise = block.multipliers @ block.multipliers.T, block.noise @ block.noise.T
    for group in range(4):
        own = slice(4 * group, 4 * group + 4)
        torch.testing.assert_close(masks[own, own], torch.ones(4, 4).double())
        torch.testing.assert_close(noise[own, own], CORRELATIONS, atol=1e-6, rtol=0)
    torch.testing.assert_close(masks[::4, ::4], CORRELATIONS, atol=1e-6, rtol=0)
    assert float(noise[:4, 4:].abs().max()) == 0
