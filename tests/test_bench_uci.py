"""The benchmark of tables is right: its splits, its networks, and its comparisons."""

from pathlib import Path

import pytest
import torch
from scipy import stats

from howsure_lab.experiments.uci.data import DataSet


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))


def numbers(count=300):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(count)
    return DataSet("toy", x, x.sum(1, keepdim=True), ((rows[30:], rows[:30]),))


def test_a_gap_has_the_middle_of_its_feature_and_nothing_else():
    from uci_splits import gaps

    (found,) = gaps(numbers(), range(1, 2))
    known = torch.cat([found.train[0], found.held_out[0]])[:, 1].sort().values
    middle = found.test[0][:, 1]
    assert len(middle) == 100 and len(known) == 200
    assert float(known[99]) < float(middle.min()) and float(middle.max()) < float(known[100])


def test_rows_that_occur_in_training_are_not_held_out():
    from uci_splits import splits

    data = numbers()
    twice = DataSet("toy", data.x.clone(), data.y, data.splits)
    twice.x[30:165] = twice.x[165:300]
    (found,) = splits(twice)
    seen = {tuple(row) for row in found.train[0].tolist()}
    assert 0 < len(found.held_out[0]) < 50
    assert not any(tuple(row) in seen for row in found.held_out[0].tolist())


def test_networks_trained_at_once_are_independent_and_learn():
    from uci_networks import Recipe, _network, trained

    x = torch.randn(2, 80, 3, generator=torch.Generator().manual_seed(1))
    y = torch.stack([x[0, :, :1], x[1, :, 1:2].square()])
    weights = trained(x, y, Recipe(steps=150), seed=0)
    changed = trained(x, torch.stack([y[0], -y[1]]), Recipe(steps=150), seed=0)
    torch.testing.assert_close(weights[0][0], changed[0][0])
    for k in range(2):
        error = (_network([each[k] for each in weights])(x[k]) - y[k]).square().mean()
        assert float(error) < 0.1 * float(y[k].var())


@pytest.mark.parametrize("wins, losses", [(12, 3), (5, 5), (0, 7)])
def test_the_sign_test_is_the_binomial_one(wins, losses):
    from uci import sign_test

    found = sign_test([-1.0] * wins + [2.0] * losses + [0.0])
    assert found == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
