"""The parts of an audit: measures against scipy, intervals, cost, clock and verdict."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from howsure.auditing import audit
from howsure.auditing.case import Case, Clock, Truth, monte_carlo
from howsure.auditing.layers import OUTPUT, layer_rows
from howsure.auditing.measures import (
    Estimate,
    Measures,
    mean_size,
    spearman,
    std_measures,
)
from howsure.auditing.result import AuditRow, Yardstick, recommend, sentences
from howsure.auditing.run import Candidate, Stopwatch, predict_pieces
from howsure.methods import METHODS
from howsure.setup import Setup


def test_rank_correlation_agrees_with_scipy():
    one = torch.randint(0, 9, (5, 40)).double()
    two = one + (4 * torch.randn(5, 40)).round()
    two[2, 7:12] = math.nan
    for a, b, ours in zip(one, two, spearman(one, two), strict=True):
        kept = ~b.isnan()
        theirs = scipy.stats.spearmanr(a[kept], b[kept]).statistic
        assert float(ours) == pytest.approx(theirs)
    assert float(spearman(torch.ones(1, 4), torch.arange(4.0)[None])) == 0


@pytest.mark.parametrize("center", [0.0, 0.1, -0.5])
def test_the_noise_of_the_truth_is_taken_out_of_the_log_error(center):
    def draw(mean, std):
        return mean + std * torch.randn(1, 100_000, dtype=torch.float64)

    values = draw(center, 0.05)
    exact, noise = float(values.abs().mean()), torch.tensor([0.08**2])
    assert float(mean_size(values, 0 * noise)) == pytest.approx(exact)
    assert float(mean_size(values + draw(0, 0.08), noise)) == pytest.approx(exact, rel=0.02)
    assert float(mean_size(draw(0, 0.08), noise)) < 0.01
    assert float(mean_size(torch.zeros(1, 5), noise)) == 0


def test_intervals_hold_the_true_values():
    """Fresh inputs and a fresh truth each time: 95 % intervals miss in about 5 %."""
    inside = []
    log_error = scipy.stats.foldnorm(math.log(1.2) / 0.1, scale=0.1).mean()
    for seed in range(60):
        true = (0.5 * torch.randn(25, 4, dtype=torch.float64)).exp()
        draws = true * torch.randn(200, 1, 25, 4)
        truth = Truth.of(draws).total
        std = true * 1.2 * (0.1 * torch.randn(true.shape)).exp()
        both = std_measures(std, truth, seed)
        pairs_ = ((both.ratio, 1.2), (both.log_error, log_error))
        inside.append([each.low <= value <= each.high for each, value in pairs_])
    assert (np.mean(inside, 0) > 0.88).all()


def test_a_std_of_zero_is_far_off_but_finite():
    draws = torch.randn(100, 1, 9, 2, dtype=torch.float64)
    measured = std_measures(torch.zeros(9, 2), Truth.of(draws).total, 0)
    assert measured.log_error.value == pytest.approx(math.log(1e6))
    assert measured.rank is None  # and all true stds are the same


def test_outputs_that_do_not_move_are_left_out():
    class Half(nn.Module):
        def forward(self, x):
            return torch.cat([x, torch.zeros_like(x) + 5], 1)

    x = torch.randn(12, 2)
    options = {"methods": ["linear"], "show_progress": False, "seed": 1}
    result = audit(Half().eval(), x, 0.1, samples=100, **options)
    assert result.row("linear").total.ratio.value == pytest.approx(1, abs=0.05)
    assert any("24 of 48 outputs are constant" in note for note in result.notes)


def row_of(label, ratio, log_error, cost, *, shift=0.1, std_error=None):
    def sure(value):
        return Estimate(value, value, value)

    measures = Measures(sure(ratio), sure(log_error), sure(0.95))
    parts = (measures, None, None, sure(shift), sure(cost), std_error)
    return AuditRow(label, label, {}, *parts, METHODS[label])


GAUSSIAN = Yardstick(2000, (2 * 2000) ** -0.5)


def test_cost_is_relative_to_plain_passes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("howsure.auditing.run.time.perf_counter", lambda: now[0])

    def lasting(seconds):
        def run():
            now[0] += next(seconds)

        return run

    watch = Stopwatch(lasting(iter([9.0, 2.0, 2.0, 2.0, 2.0])))
    run = lasting(iter([100.0, 10.0, 12.0, 8.0]))
    watch.time("method", run)
    assert watch.cost("method") == Estimate(50, 50, 50)
    for _ in range(3):
        watch.time("method", run)
    assert watch.cost("method") == Estimate(5, 4, 6)  # without the first, which fills caches


@pytest.mark.parametrize("rate", [None, 0.1])
def test_monte_carlo_stops_when_time_is_up(rate):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    case = Case.of(Setup(model, 0.1, rate=rate), torch.randn(5, 3), 0)
    truth = monte_carlo(case, Clock(1e-9), samples=None, seed=0, show=False)
    assert truth.samples == 100
    rows = layer_rows(case, Clock(1e-9), 1, 200, seed=0, show=False)
    assert [row.name for row in rows] == ["0", "1", OUTPUT]
    with pytest.raises(TimeoutError, match="raise `time_limit`"):
        predict_pieces(Candidate(METHODS["adf"]), case, Clock(1e-9), Stopwatch(lambda: None))


def test_budget_in_seconds():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    # Far more time than 2,000 passes of so small a network take, also on a busy machine.
    options = {"methods": ["linear"], "show_progress": False}
    result = audit(model, torch.randn(5, 3), 0.1, time_limit=120, **options)
    assert result.samples == 2000


def test_yardstick_is_the_error_of_gaussian_samples():
    error = float(torch.randn(50, 20_000).std(0).log().abs().mean())
    assert GAUSSIAN.passes(error) == pytest.approx(50, rel=0.05)
    assert GAUSSIAN.advised() == 50


def test_recommendation_weighs_error_against_cost():
    adf, gradients = row_of("adf", 0.02, 4.0, 3), row_of("gradients", 0.99, 0.03, 40)
    linear = row_of("linear", 1.12, 0.12, 11)
    assert recommend([adf, linear, gradients], GAUSSIAN).method == "gradients"
    # Sampling with an error of 0.12 takes 22 passes, with 0.03 it takes 354.
    slow = row_of("gradients", 0.99, 0.03, 400)
    assert recommend([adf, linear, slow], GAUSSIAN).method == "linear"
    nearly = row_of("linear", 1.0, 0.045, 11)
    assert recommend([adf, nearly, gradients], GAUSSIAN).method == "linear"
    far = row_of("gradients", 0.8, 0.25, 40, std_error=0.3)
    advice = recommend([adf, far], GAUSSIAN)
    assert (advice.method, advice.options) == ("noise_sampling", {"samples": 50})
    assert "(its own standard error is 30 %)" in advice.reason
    assert recommend([], GAUSSIAN).method == "noise_sampling"


def test_verdict_speaks_about_the_mean():
    rows = [row_of("adf", 0.95, 0.1, 3, shift=0.1)]
    advice = recommend(rows, GAUSSIAN)

    def said(shift):
        return sentences(rows, advice, Estimate(shift, shift, shift), ())

    assert "usable here" in said(0.1)[0] and "either mean will do" in said(0.1)[-1]
    assert 'prediction="mean"' in said(1.5)[-1]
    default = [row_of("gradients", 1.0, 0.03, 9, shift=1.5)]
    text = sentences(default, recommend(default, GAUSSIAN), Estimate(1.5, 1.5, 1.5), ())[-1]
    assert 'where the mean matters, set `prediction="mean"`' in text
    worse = [row_of("linear", 1.0, 0.05, 5, shift=1.5), row_of("adf", 0.1, 2.0, 3, shift=0.2)]
    text = sentences(worse, recommend(worse, GAUSSIAN), Estimate(1.5, 1.5, 1.5), ())[-1]
    assert "no better" in text and "`adf` (0.2 std)" in text


def test_an_output_without_variance_is_not_compared():
    draws = torch.tensor([1.0, 2.0, 3.0])[:, None, None, None] * torch.tensor([0.0, 1.0])
    total = Truth.of(draws).total
    assert total.valid.tolist() == [[False, True]] and total.error.isnan().tolist() == [
        [True, False]
    ]
