"""Accuracy benchmarks: what they measure, hold against bounds and read off curves."""

import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_measures_leave_out_the_error_of_monte_carlo():
    from accuracy_measures import Truth, measures

    generator = torch.Generator().manual_seed(0)
    true_std = torch.rand(4000, 1, generator=generator) + 0.5
    draws = true_std * torch.randn(400, 4000, 1, generator=generator)
    truth = Truth.of(draws, true_std)
    exact = measures(truth, torch.zeros(4000, 1), true_std, 0.1 * true_std)
    assert truth.own_error == pytest.approx(800**-0.5, rel=0.1)
    assert truth.rank_limit == pytest.approx(exact["rank"], abs=0.005)
    assert exact["log_error"] < 0.01 and exact["actual_error"] < 0.015
    assert exact["ratio"] == pytest.approx(1, abs=0.01)
    assert exact["stated_error"] == pytest.approx(0.1, rel=0.01)
    wrong = measures(truth, torch.zeros(4000, 1), 1.2 * true_std, None)
    assert wrong["log_error"] == pytest.approx(0.182, abs=0.01)
    assert wrong["actual_error"] == pytest.approx(0.2, abs=0.01)
    assert wrong["rank"] == exact["rank"] > 0.98 and "stated_error" not in wrong


def test_the_linear_part_of_monte_carlo_makes_it_more_precise():
    from accuracy_measures import Truth, measures

    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 2000, 1, generator=generator)
    draws = 3 * z + 0.1 * (z.square() - 1)
    linear = {"draws": 2.9 * z, "var": torch.full((2000, 1), 2.9**2)}
    alone, helped = (Truth.of(draws, z[0], linear=each) for each in (None, linear))
    true_std = torch.full((2000, 1), (9 + 2 * 0.01) ** 0.5)
    assert helped.own_error < 0.2 * alone.own_error
    errors = (helped.std / true_std.flatten() - 1).square().mean().sqrt()
    assert errors == pytest.approx(helped.own_error, rel=0.1)
    assert helped.mean.std() < 0.2 * alone.mean.std()
    assert measures(helped, true_std, true_std, None)["ratio"] == pytest.approx(1, abs=0.001)


def test_the_linear_part_is_that_of_the_noise_of_monte_carlo():
    from bench import draws
    from real_networks import Case, _linear_rows, mean_slope, monte_carlo

    weights = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(weights.T)
    x, case = torch.zeros(4, 3), Case("MLP, 0.5", "MLP", noise_std=0.5)
    slope = 0.5 * mean_slope(model, x, case)
    one_by_one = _linear_rows(slope, 5, one_by_one=True)
    assert torch.allclose(one_by_one, draws(model, x, 0.5, 50), atol=1e-6)
    images = torch.zeros(4, 3, 1, 1)
    flat = torch.nn.Sequential(torch.nn.Flatten(), model)
    together = _linear_rows(slope[..., None, None], 5, one_by_one=False)
    assert torch.allclose(together, monte_carlo(flat, images, case, 5), atol=1e-6)


def test_the_top_class_counts_where_its_probability_moves():
    from accuracy_measures import Truth

    plain = torch.tensor([[0.0, 1.0], [15.0, 0.0]])
    draws = plain + torch.randn(500, 2, 2, generator=torch.Generator().manual_seed(0))
    truth = Truth.of(draws, plain, probability=True)
    assert truth.chosen is not None
    assert truth.chosen.tolist() == [[False, True], [False, False]]
    assert truth.pick(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [2.0]
    assert truth.mean_error(plain) < 0.5


def test_bounds_on_accuracy_hold_or_not():
    from accuracy_bounds import DEFAULT, PLAIN, report, rows

    row = {"log_error": 0.04, "rank": 0.99, "mean_error": 0.1, "ratio": 1.0}
    row |= {"stated_error": 0.03, "actual_error": 0.05}
    found = {
        (each.case, each.measure): each for each in rows({"DroNet, 2 gray levels": {DEFAULT: row}})
    }
    case = "DroNet, 2 gray levels"
    assert found[case, "log error"].holds is True and found[case, "rank"].holds is True
    assert found[case, "stated / actual error"].holds is False
    assert found["ViT, 2 gray levels", "log error"].holds is None
    assert (case, "mean error") not in found
    below = {DEFAULT: {**row, "actual_error": 0.001}, PLAIN: {"own_error": 0.02}}
    unknown = rows({case: below})[-1]
    assert unknown.measure == "stated error / Monte Carlo error" and unknown.holds is False
    text = report(list(found.values()))
    assert "MISS DroNet, 2 gray levels: stated / actual error 0.600 (0.77 to 1.30)" in text
    assert text.endswith(f"1 of {len(found)} bounds are missed.")


def test_error_of_samples_falls_with_their_root():
    from time_to_accuracy import sampling_error

    drawn = torch.randn(2000, 50, 1, generator=torch.Generator().manual_seed(0))
    for count in (50, 200, 500, 2000):
        assert sampling_error(drawn, count) == pytest.approx((2 * count) ** -0.5, rel=0.15)


@pytest.mark.parametrize(
    "errors, expected",
    [([0.04, 0.01], 1.0), ([0.1, 0.025], 2.0), ([0.2, 0.1], None)],
)
def test_time_to_an_error_is_read_off_straight_lines(errors, expected):
    from time_to_accuracy import time_to

    found = time_to(0.05, [1.0, 4.0], errors)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_what_auto_picks_is_kept_by_its_name():
    from bench import draws
    from time_to_accuracy import errors_of

    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    net = torch.nn.Sequential(*layers).eval().requires_grad_(False)
    x = torch.randn(3, 4)
    found = errors_of(net, x, 0.1, draws(net, x, 0.1, 400))
    assert json.loads(json.dumps(found)) == found
    assert found["auto"] == "Monte Carlo" and found["auto_setting"] > 0
    assert found["errors"]["gradients"][-1] < 0.05 < found["errors"]["Monte Carlo"][0]
