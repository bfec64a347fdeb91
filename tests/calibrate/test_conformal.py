"""Conformal intervals and sets: ranks, groups, corner cases."""

import math
from fractions import Fraction

import pytest
import torch

import howsure as hs
from howsure.calibrate import Conformal, ConformalClasses, class_probabilities
from howsure.calibrate.conformal import points_needed, rank


def draws(n=50, shape=(), *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    std = torch.rand(n, *shape, generator=generator).double() + 0.2
    error = torch.randn(n, *shape, generator=generator).double() * std
    mean = torch.randn(n, *shape, generator=generator).double()
    return hs.Prediction(mean, std.square(), torch.zeros_like(mean)), mean + error


def test_rank_is_exact_where_floating_point_is_not():
    assert rank(99, 0.07) == 7 and math.ceil(100 * 0.07) == 8
    for n in range(1, 200, 7):
        for percent in range(1, 100):
            assert rank(n, percent / 100) == math.ceil(Fraction((n + 1) * percent, 100))
            assert rank(n, 1 - percent / 100) == math.ceil(Fraction((n + 1) * (100 - percent), 100))
    for level in (0.5, 0.9, 0.95, 0.99, 1 - 1e-12):
        n = points_needed(level)
        assert rank(n, level) <= n and rank(n - 1, level) > n - 1
    assert points_needed(0.9) == 9 and points_needed(0.95) == 19


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.98])
def test_the_interval_is_the_ranked_score_times_the_std(level):
    prediction, target = draws()
    fitted = Conformal.fit(prediction, target)
    scores = ((target - prediction.mean).abs() / prediction.std).tolist()
    q = sorted(scores)[math.ceil(51 * level) - 1]
    low, high = fitted.interval(prediction, level)
    torch.testing.assert_close(low, prediction.mean - q * prediction.std)
    torch.testing.assert_close(high, prediction.mean + q * prediction.std)
    after = fitted(prediction)
    assert torch.equal(after.interval(level)[0], low) and torch.equal(after.std, prediction.std)


def test_each_output_has_its_own_quantile_and_joint_covers_all():
    prediction, target = draws(60, (2, 3))
    each, joint = (Conformal.fit(prediction, target, joint=flag) for flag in (False, True))
    low, high = each.interval(prediction, 0.8)
    inside = (low <= target) & (target <= high)
    assert (inside.sum(0) == rank(60, 0.8)).all()
    low, high = joint.interval(prediction, 0.8)
    assert ((low <= target) & (target <= high)).flatten(1).all(1).sum() == rank(60, 0.8)
    for i in range(2):
        parts = (prediction.mean, prediction.data_var, prediction.model_var)
        one = hs.Prediction(*(tensor[:, i, 1] for tensor in parts))
        alone = Conformal.fit(one, target[:, i, 1]).interval(one, 0.8)[0]
        torch.testing.assert_close(each.interval(prediction, 0.8)[0][:, i, 1], alone)
    with pytest.raises(ValueError, match=r"outputs of shape \(2, 3\); this prediction has shape"):
        each.interval(draws(5, (3,))[0], 0.8)


def test_groups_are_separate_calibrators():
    prediction, target = draws(90)
    groups = ["day" if i % 3 else "night" for i in range(90)]
    fitted = Conformal.fit(prediction, target, groups=groups)
    assert dict(zip(fitted.labels, fitted.counts, strict=True)) == {"night": 30, "day": 60}
    low, _ = fitted.interval(prediction, 0.9, groups=groups)
    for label in ("day", "night"):
        chosen = torch.tensor([group == label for group in groups])
        parts = (prediction.mean, prediction.data_var, prediction.model_var)
        part = hs.Prediction(*(tensor[chosen] for tensor in parts))
        alone = Conformal.fit(part, target[chosen])
        torch.testing.assert_close(low[chosen], alone.interval(part, 0.9)[0])
    numbers = torch.tensor([0 if group == "day" else 1 for group in groups])
    by_number = Conformal.fit(prediction, target, groups=numbers)
    torch.testing.assert_close(by_number.interval(prediction, 0.9, groups=numbers)[0], low)
    joint = Conformal.fit(*draws(90, (2,)), groups=groups, joint=True)
    assert joint.interval(draws(90, (2,))[0], 0.9, groups=groups)[0].shape == (90, 2)


def test_small_and_unknown_groups_get_infinite_intervals_and_say_so():
    prediction, target = draws(50)
    groups = ["rare"] * 5 + ["common"] * 45
    fitted = Conformal.fit(prediction, target, groups=groups)
    asked = ["rare", "common", "never"] + ["common"] * 47
    with pytest.warns(UserWarning, match=r"needs 9 .*'never' has 0, 'rare' has 5"):
        low, high = fitted.interval(prediction, 0.9, groups=asked)
    assert torch.isinf(low[[0, 2]]).all() and torch.isinf(high[[0, 2]]).all()
    assert torch.isfinite(low[[1, *range(3, 50)]]).all()
    assert torch.isfinite(fitted.interval(prediction, 0.8, groups=groups)[0]).all()  # no warning
    (note,) = fitted(prediction).notes
    assert "'rare' 0.833 (n = 5)" in note


def test_a_std_of_zero():
    zero, std = torch.zeros(20), torch.tensor([0.0] * 10 + [1.0] * 10)
    prediction = hs.Prediction(zero, std, zero)
    target = torch.cat([torch.zeros(8), torch.ones(2), torch.linspace(0.1, 1, 10)])
    fitted = Conformal.fit(prediction, target)
    low, high = fitted.interval(prediction, 0.85)  # rank 18: two scores are infinite
    assert (high[:10] == 0).all() and ((low <= target) & (target <= high)).sum() == 18
    low, high = fitted.interval(prediction, 0.95)
    assert torch.isinf(low).all() and torch.isinf(high).all()


def test_batch_of_one_float32_and_a_dict():
    fitted = Conformal.fit(*draws(30, (2,)))
    one = torch.ones(1, 2)
    low, high = fitted.interval(hs.Prediction({"a": one}, {"a": one}, {"a": 0 * one}), 0.9)
    assert low["a"].dtype == torch.float32 and (high["a"] > low["a"]).all()


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (None, ValueError, r"fitted by group; give `groups=`"),
        (["a"], ValueError, "1 labels for 50 inputs"),
        (torch.zeros(50), TypeError, "a whole number or a string for each input"),
        ([0.5] * 50, TypeError, "type float64; give a whole number or a string"),
    ],
)
def test_wrong_groups(groups, error, message):
    prediction, target = draws(50)
    fitted = Conformal.fit(prediction, target, groups=["a"] * 50)
    with pytest.raises(error, match=message):
        fitted.interval(prediction, 0.5, groups=groups)


def test_wrong_levels():
    prediction, target = draws(50)
    fitted = Conformal.fit(prediction, target)
    with pytest.raises(ValueError, match="needs at least 99 held-out points; there are 50"):
        fitted.interval(prediction, 0.99)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fitted.interval(prediction, 1.0)
    with pytest.raises(ValueError, match="fitted without groups"):
        fitted.interval(prediction, 0.5, groups=["a"] * 50)
    with pytest.raises(TypeError, match="Only `ConformalClasses`"):
        fitted(prediction).sets(0.9)


def classes(n=80, places=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, *places, generator=generator)
    prediction = class_probabilities(
        hs.Prediction(logits, torch.zeros_like(logits), torch.zeros_like(logits))
    )
    p = prediction.mean.movedim(1, -1)
    labels = torch.multinomial(p.reshape(-1, 4), 1, generator=generator)
    return prediction, labels.reshape(p.shape[:-1])


def test_sets_of_classes():
    prediction, labels = classes()
    fitted = ConformalClasses.fit(prediction, labels)
    sets = fitted.sets(prediction, 0.9)
    assert sets.shape == (80, 4) and sets.dtype == torch.bool
    assert sets.gather(1, labels[:, None]).sum() == rank(80, 0.9)
    true = sorted((1 - prediction.mean.double().gather(1, labels[:, None])).flatten().tolist())
    assert torch.equal(sets, 1 - prediction.mean.double() <= true[rank(80, 0.9) - 1])
    assert torch.equal(fitted(prediction).sets(0.9), sets)
    with pytest.raises(TypeError, match="no interval"):
        fitted(prediction).interval(0.9)


def test_sets_by_group_and_place():
    prediction, labels = classes(60, (2,))
    groups = torch.arange(60) % 2
    fitted = ConformalClasses.fit(prediction, labels, groups=groups)
    sets = fitted.sets(prediction, 0.8, groups=groups)
    held = sets.gather(1, labels[:, None]).squeeze(1)
    assert (held[groups == 0].sum(0) == rank(30, 0.8)).all()
    assert (held[groups == 1].sum(0) == rank(30, 0.8)).all()
    with pytest.warns(UserWarning, match="'?7'? has 0"):
        assert fitted.sets(prediction, 0.8, groups=[7] * 60).all()
    with pytest.raises(ValueError, match="fitted for 4 classes"):
        fitted.sets(classes()[0], 0.8)
    logits = prediction.logits
    with pytest.raises(ValueError, match="holds no class probabilities"):
        ConformalClasses.fit(logits, labels)
