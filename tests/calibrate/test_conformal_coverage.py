"""The promise of conformal prediction, over 200 draws of held-out data.

With n held-out points coverage is Beta(k, n + 1 - k), k = ceil((n + 1) level), so the hits among m
new points are beta-binomial. Three checks on the 200 counts, each with a false-alarm rate of at
most 1e-5: their mean (z-test), their distribution (Kolmogorov-Smirnov on randomized ranks) and
their extremes (Bonferroni). 7 cases of 3 checks: in all at most 2.1e-4 with fresh seeds, 0 with
these, which are fixed.
"""

import math
from functools import partial

import pytest
import torch
from scipy import stats

import howsure as hs
from howsure.calibrate import Conformal, ConformalClasses, class_probabilities

# Few held-out points give the checks power: one rank less lowers the mean coverage by 1 / 31, about
# 8 standard errors of the mean of 200 draws; with 60 points it is 5.6, where 4.4 is the alarm.
DRAWS, HELD_OUT, NEW, LEVEL, ALARM = 200, 30, 400, 0.9, 1e-5


def gaussian(x, generator):
    """Heteroscedastic errors and the right std."""
    std = 0.2 + x.square()
    return std * torch.randn(len(x), generator=generator), std


def heavy(x, generator):
    """Student's t with 2 degrees of freedom, which has no variance, and a bias."""
    normal = torch.randn(3, len(x), generator=generator)
    return 0.5 + normal[0] / normal[1:].square().mean(0).sqrt(), torch.ones(len(x))


def adversarial(x, generator):
    """A std that is small where errors are large, and wrong by up to 1e6."""
    std = 0.2 + x.square()
    return std * torch.randn(len(x), generator=generator), 1e-3 / std.pow(4)


def predicted(errors_of, n, generator):
    x = torch.rand(n, generator=generator) * 4 - 2
    error, std = errors_of(x, generator)
    mean = torch.sin(x).double()
    zero = torch.zeros_like(mean)
    return hs.Prediction(mean, std.double().square(), zero), mean + error.double(), x


def hits(errors_of, seed):
    """How many of NEW targets are covered, after a fit on HELD_OUT."""
    generator = torch.Generator().manual_seed(seed)
    fitted = Conformal.fit(*predicted(errors_of, HELD_OUT, generator)[:2])
    prediction, target, _ = predicted(errors_of, NEW, generator)
    low, high = fitted.interval(prediction, LEVEL)
    return int(((low <= target) & (target <= high)).sum())


def joint_hits(seed):
    """All of three outputs at once."""
    generator = torch.Generator().manual_seed(seed)

    def several(n):
        common = torch.randn(n, 1, generator=generator).double()
        error = common + torch.randn(n, 3, generator=generator).double() * torch.arange(1, 4)
        zero = torch.zeros(n, 3).double()
        return hs.Prediction(zero, zero + 1, zero), error

    fitted = Conformal.fit(*several(HELD_OUT), joint=True)
    prediction, target = several(NEW)
    low, high = fitted.interval(prediction, LEVEL)
    return int(((low <= target) & (target <= high)).all(1).sum())


def class_hits(seed):
    """Probabilities that are far too sure."""
    generator = torch.Generator().manual_seed(seed)

    def labeled(n):
        logits = torch.randn(n, 5, generator=generator).double()
        labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
        zero = torch.zeros_like(logits)
        return class_probabilities(hs.Prediction(4 * logits, zero, zero)), labels

    fitted = ConformalClasses.fit(*labeled(HELD_OUT))
    prediction, labels = labeled(NEW)
    return int(fitted.sets(prediction, LEVEL).gather(1, labels[:, None]).sum())


def group_hits(seed, *, by_group=True):
    """Two groups whose errors differ by a factor of 5 that the std does not know."""
    generator = torch.Generator().manual_seed(seed)

    def grouped(size):
        group = torch.arange(2 * size) % 2
        error = torch.randn(2 * size, generator=generator).double() * (1 + 4 * group)
        zero = torch.zeros(2 * size).double()
        return hs.Prediction(zero, zero + 1, zero), error, group

    prediction, target, group = grouped(HELD_OUT)
    fitted = Conformal.fit(prediction, target, groups=group if by_group else None)
    prediction, target, group = grouped(NEW)
    low, high = fitted.interval(prediction, LEVEL, groups=group if by_group else None)
    inside = (low <= target) & (target <= high)
    return int(inside[group == 0].sum()), int(inside[group == 1].sum())


def alarms(counts):
    """Which of the three checks the counts fail."""
    k = math.ceil((HELD_OUT + 1) * LEVEL)
    law = stats.betabinom(NEW, k, HELD_OUT + 1 - k)
    z = (sum(counts) / len(counts) - law.mean()) / (law.std() / math.sqrt(len(counts)))
    uniform = torch.rand(len(counts), generator=torch.Generator().manual_seed(0)).double().numpy()
    ranks = law.cdf([c - 1 for c in counts]) + uniform * law.pmf(counts)
    extreme = min(law.cdf(min(counts)), law.sf(max(counts) - 1))
    found = {
        "mean": 2 * stats.norm.sf(abs(z)) < ALARM,
        "distribution": stats.kstest(ranks, "uniform").pvalue < ALARM,
        "extremes": extreme < ALARM / (2 * len(counts)),
    }
    return [name for name, alarm in found.items() if alarm]


CASES = {
    "normalized": partial(hits, gaussian),
    "heavy tails and bias": partial(hits, heavy),
    "adversarial std": partial(hits, adversarial),
    "joint": joint_hits,
    "classes": class_hits,
}


@pytest.mark.parametrize("case", CASES)
def test_coverage_has_its_finite_sample_law(case):
    assert alarms([CASES[case](seed) for seed in range(DRAWS)]) == []


def test_coverage_has_its_law_within_each_group():
    for counts in zip(*(group_hits(seed) for seed in range(DRAWS)), strict=True):
        assert alarms(counts) == []


def test_the_checks_see_groups_that_are_not_told_apart():
    for counts in zip(*(group_hits(seed, by_group=False) for seed in range(DRAWS)), strict=True):
        assert alarms(counts)


def test_the_checks_see_a_quantile_without_the_finite_sample_correction(monkeypatch):
    monkeypatch.setattr(
        "howsure.calibrate.conformal.rank", lambda n, level: math.ceil((n + 1) * level) - 1
    )
    assert alarms([hits(gaussian, seed) for seed in range(DRAWS)])


def test_the_checks_see_gaussian_intervals_of_a_wrong_std():
    def gaussian_hits(seed):
        generator = torch.Generator().manual_seed(seed)
        prediction, target, _ = predicted(adversarial, NEW, generator)
        low, high = prediction.interval(LEVEL)
        return int(((low <= target) & (target <= high)).sum())

    assert alarms([gaussian_hits(seed) for seed in range(DRAWS)])
