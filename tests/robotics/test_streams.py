"""Adaptive conformal intervals: coverage on any stream, bounded memory, safe files."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import howsure as hs
from howsure.robotics import AdaptiveConformal


def predicted(mean, std=1.0):
    mean = torch.as_tensor(mean, dtype=torch.float64)
    var = torch.as_tensor(std, dtype=torch.float64).square().expand_as(mean)
    return hs.Prediction(mean, var, torch.zeros_like(mean))


def fed(stream, errors, std=1.0):
    """The stream after errors of predictions that are all 0, one by one."""
    for error in torch.as_tensor(errors, dtype=torch.float64):
        stream.update(predicted(torch.zeros(1, *error.shape), std), error[None])
    return stream


def bound(stream):
    """How far the share of misses may be from 1 - level (Gibbs & Candes 2021, Prop. 4.1)."""
    return (max(stream.level, 1 - stream.level) + stream.rate) / (stream.rate * stream.steps)


def reference(errors, level, rate, window):
    """The same by hand, from the paper's Eqs. 2 and 3: misses and alphas."""
    alpha, kept, misses, alphas = 1 - level, [], [], []
    for error in np.abs(errors):
        k = math.ceil((len(kept) + 1) * (1 - alpha))
        if alpha <= 0 or k > len(kept):
            q = math.inf
        else:
            q = sorted(kept)[max(k, 1) - 1] if alpha < 1 else -math.inf
        misses.append(error > q)
        alpha += rate * (1 - level - misses[-1])
        alphas.append(alpha)
        kept = [*kept, error][-window:]
    return misses, alphas


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.5])
def test_alpha_and_misses_are_those_of_the_paper(rate):
    errors = np.random.default_rng(0).normal(size=400) * np.linspace(1, 5, 400)
    stream, (misses, alphas) = AdaptiveConformal(0.9, rate, 50), reference(errors, 0.9, rate, 50)
    for step, error in enumerate(errors):
        fed(stream, [[error]])
        assert stream.alpha.item() == pytest.approx(alphas[step], abs=1e-12)
    assert stream.missed.item() == sum(misses) > 20


def test_coverage_holds_where_the_noise_grows_and_split_conformal_loses_it():
    random = np.random.default_rng(1)
    calm, drifting = random.normal(size=1000), random.normal(size=2000) * np.linspace(1, 6, 2000)
    held_out = predicted(torch.zeros(1000, 1)), torch.tensor(calm)[:, None]
    fixed = hs.calibrate.Conformal.fit(*held_out)
    low, high = fixed.interval(predicted(torch.zeros(1, 1)), 0.9)
    assert np.mean((low.item() <= drifting) & (drifting <= high.item())) < 0.6
    stream = AdaptiveConformal(0.9, 0.02).start(*held_out)
    stream.update(predicted(torch.zeros(2000, 1)), torch.tensor(drifting)[:, None])
    assert stream.coverage.item() == pytest.approx(0.9, abs=0.02)
    assert abs(stream.coverage.item() - 0.9) <= bound(stream)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    errors=st.lists(st.floats(0, 1e6), min_size=1, max_size=150),
    level=st.sampled_from([0.5, 0.8, 0.9]),
    rate=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_the_bound_holds_for_every_sequence(errors, level, rate):
    stream = fed(AdaptiveConformal(level, rate, 20), torch.tensor(errors)[:, None])
    # The last digit is that of the float64 sums.
    assert abs(stream.coverage.item() - level) <= bound(stream) + 1e-9
    assert -rate - 1e-9 <= stream.alpha.item() <= 1 + rate + 1e-9
    assert len(stream.scores) <= 20


def test_every_output_has_its_own_width():
    random = np.random.default_rng(2)
    errors = torch.tensor(random.normal(size=(1500, 2)) * [1.0, 5.0])
    stream = AdaptiveConformal(0.9).update(predicted(torch.zeros(1500, 2)), errors)
    low, high = stream.interval(predicted([[1.0, 2.0]]))
    half = ((high - low) / 2)[0].tolist()
    # The 90 % quantile of |N(0, 1)| is 1.645; 500 scores give it to about 5 %.
    assert half == pytest.approx([1.645, 5 * 1.645], rel=0.15)
    torch.testing.assert_close((low + high) / 2, torch.tensor([[1.0, 2.0]], dtype=torch.float64))


def test_widths_follow_the_predicted_std():
    stream = fed(AdaptiveConformal(0.5, window=10), [[1.0]] * 10, std=2.0)
    low, high = stream.interval(predicted([[0.0], [0.0]], std=torch.tensor([[4.0], [0.0]])))
    assert (high - low).flatten().tolist() == [4, 0]  # scores of 0.5, times 4 and 0, both ways


def test_a_batch_is_taken_row_by_row():
    errors = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = AdaptiveConformal(0.8, 0.1, 30).update(predicted(torch.zeros(60, 2)), errors)
    other = fed(AdaptiveConformal(0.8, 0.1, 30), errors)
    assert torch.equal(one.alpha, other.alpha) and torch.equal(one.scores, other.scores)
    assert one.steps == 60


def test_the_first_intervals_are_infinite_and_a_start_makes_them_finite():
    p = predicted([[0.0]])
    assert [x.item() for x in AdaptiveConformal().interval(p)] == [-math.inf, math.inf]
    stream = AdaptiveConformal(0.9, window=20).start(
        predicted(torch.zeros(100, 1)), torch.arange(100.0)[:, None]
    )
    assert len(stream.scores) == 20 and stream.steps == 0
    # The 19th of the 20 last scores, 80 to 99: ceil(21 * 0.9) = 19.
    assert stream.interval(p)[1].item() == 98


def started(level, rate):
    """A stream that has ten scores of 1."""
    return AdaptiveConformal(level, rate, 10).start(
        predicted(torch.zeros(10, 1)), torch.ones(10, 1)
    )


def test_a_miss_too_many_makes_the_interval_infinite():
    stream = fed(started(0.9, 0.2), [[2.0]])
    assert stream.alpha.item() == pytest.approx(0.1 + 0.2 * (0.1 - 1))  # below 0
    assert stream.interval(predicted([[0.0]]))[1].item() == math.inf
    assert fed(stream, [[1e9]]).missed.item() == 1  # nothing is outside


def test_a_hit_too_many_makes_the_interval_empty():
    stream = fed(started(0.5, 0.9), [[0.5], [0.5]])
    assert stream.alpha.item() == pytest.approx(0.5 + 2 * 0.9 * 0.5)  # above 1
    assert all(math.isnan(x.item()) for x in stream.interval(predicted([[0.0]])))
    assert fed(stream, [[0.0]]).missed.item() == 1  # nothing is inside


def test_a_saved_stream_goes_on_as_if_it_had_not_stopped(tmp_path):
    errors = np.random.default_rng(3).normal(size=(200, 3))
    whole = fed(AdaptiveConformal(0.8, 0.05, 40), errors)
    fed(AdaptiveConformal(0.8, 0.05, 40), errors[:120]).save(tmp_path / "stream.pt")
    assert "howsure" in torch.load(tmp_path / "stream.pt", weights_only=True)["format"]
    resumed = fed(AdaptiveConformal.load(tmp_path / "stream.pt"), errors[120:])
    for name in ("scores", "alpha", "missed"):
        assert torch.equal(getattr(resumed, name), getattr(whole, name))
    assert resumed.steps == 200 and resumed.level == 0.8


def test_a_new_stream_can_be_saved(tmp_path):
    AdaptiveConformal(0.7, 0.01, 5).save(tmp_path / "stream.pt")
    again = AdaptiveConformal.load(tmp_path / "stream.pt")
    assert (again.level, again.rate, again.window, again.steps) == (0.7, 0.01, 5, 0)


def test_a_state_is_a_copy():
    stream = fed(AdaptiveConformal(), [[1.0]])
    again = AdaptiveConformal.from_state(stream.state())
    fed(again, [[2.0]])
    assert stream.steps == 1 and len(stream.scores) == 1


def test_reset_forgets_everything_but_the_options():
    stream = fed(AdaptiveConformal(0.8, 0.1, 20), torch.ones(30, 2)).reset()
    assert repr(stream) == "AdaptiveConformal(level 0.8, 0 steps)"
    assert stream.interval(predicted([[0.0]]))[1].item() == math.inf
    assert fed(stream, [[1.0]]).steps == 1


DAMAGES = {
    "format": {"format": "other"},
    "too many scores": {"window": 9},
    "other shape": {"alpha": torch.zeros(2)},
    "nan score": {"scores": torch.full((10, 1), math.nan)},
    "nan alpha": {"alpha": torch.full((1,), math.nan)},
    "level": {"level": 2.0},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused(damage):
    state = fed(AdaptiveConformal(0.8, window=10), torch.ones(10, 1)).state()
    AdaptiveConformal.from_state(state)
    with pytest.raises(ValueError):
        AdaptiveConformal.from_state({**state, **DAMAGES[damage]})


MISTAKES = {
    "level": (lambda: AdaptiveConformal(90), "`level` is 90"),
    "rate": (lambda: AdaptiveConformal(rate=0), "`rate` is 0"),
    "window": (lambda: AdaptiveConformal(0.99, window=50), "needs at least 99 scores"),
    "outputs": (
        lambda: fed(AdaptiveConformal(), [[1.0]]).interval(predicted([[0.0, 0.0]])),
        r"has outputs of shape \(1,\)",
    ),
    "nan": (lambda: fed(AdaptiveConformal(), [[math.nan]]), "contains NaN"),
    "nothing yet": (lambda: AdaptiveConformal().coverage, "No targets yet"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        call()
