"""The line search against minima in closed form, at the ends, and where a cost is undefined."""

import math

import pytest
import torch

from howsure.line_search import log_minimum, log_refine


@pytest.mark.parametrize("best", [1e-6, 0.37, 1.0, 42.0, 3e5])
def test_minima_of_several_functions_at_once(best):
    """a / x + x / a has its minimum at a."""
    at = best * torch.tensor([1.0, 1.3, 2.9], dtype=torch.float64)
    found = log_minimum(lambda x: at / x + x / at, 1e-7, 1e7)
    torch.testing.assert_close(found, at, rtol=1e-8, atol=0)


def test_the_deeper_of_two_minima():
    def cost(x):
        return -torch.exp(-((x.log() - 2) ** 2)) - 1.1 * torch.exp(-((x.log() + 3) ** 2))

    assert float(log_minimum(cost, 1e-3, 1e3).log()) == pytest.approx(-3, abs=1e-6)


@pytest.mark.parametrize("depth", [0.99, 1.01])
def test_the_deeper_of_two_minima_that_the_grid_takes_for_the_other(depth):
    """The grid has four points a decade: one at the middle of the first, none of the second."""

    def cost(x):
        first = torch.exp(-(((x.log10() + 1) / 0.1) ** 2))
        return -first - depth * torch.exp(-(((x.log10() - 1.125) / 0.1) ** 2))

    best = -1 if depth < 1 else 1.125
    assert float(log_minimum(cost, 1e-3, 1e3).log10()) == pytest.approx(best, abs=1e-6)


def test_functions_with_one_and_with_two_minima():
    centers = torch.tensor([[-2.0, 3.0], [1.0, 1.0]], dtype=torch.float64)

    def cost(x):
        dents = torch.exp(-((x.log()[:, None] - centers) ** 2))
        return -(dents * torch.tensor([1.0, 1.2], dtype=torch.float64)).sum(1)

    torch.testing.assert_close(
        log_minimum(cost, 1e-3, 1e3).log(),
        torch.tensor([3.0, 1.0], dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )


def test_a_falling_function_has_its_minimum_at_the_end():
    assert float(log_minimum(lambda x: x, 1e-3, 1e3)) == pytest.approx(1e-3)
    assert float(log_minimum(lambda x: -x.log(), 1e-3, 1e3)) == pytest.approx(1e3)


def test_where_a_cost_is_undefined_it_is_no_minimum():
    found = log_minimum(lambda x: torch.where(x < 1, math.nan, x), 1e-3, 1e3)
    assert 1 <= float(found) < 1.1
    assert not log_minimum(lambda x: x * math.nan, 1e-3, 1e3).isnan().any()


def test_twelve_evaluations_polish_a_start_that_is_off_by_a_third():
    calls = []

    def cost(x):
        calls.append(x)
        return torch.log1p(x / 3) - 0.5 * x.log()  # its minimum is at 3

    found = log_refine(cost, torch.tensor([4.0]), width=0.2, rounds=4)
    assert float(found) == pytest.approx(3, rel=1e-4) and len(calls) == 12
