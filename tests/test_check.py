import pytest
import torch
from torch import nn

import howsure as hs
from howsure.moments.rule import find
from nets import FunctionalResNet

X = torch.rand(2, 3, 16, 16)


def test_a_covered_model_is_ok_and_its_weak_spots_are_named():
    result = hs.check(FunctionalResNet(), X)
    assert result.ok and not result.missing
    by_name = {row.operation: row for row in result.rows}
    assert by_name["torch.conv2d"].count == 3
    assert by_name["torch.conv2d"].modules == ("stem", "first", "second")
    assert by_name["torch.conv2d"].fidelity == "exact"
    assert any("residual" in line for line in result.advice)
    assert "torch.Tensor.shape" not in by_name


def test_missing_operations_come_first_with_the_remedy():
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.MaxPool2d(2))
    result = hs.check(lambda x: torch.special.i0(model(x)).sort(), X)
    assert not result.ok
    assert [row.fidelity for row in result.rows[:2]] == ["missing", "missing"]
    text = str(result)
    assert "torch.special.i0" in text and 'fallback="linearise"' in text
    assert "torch.nn.functional.max_pool2d` is the weakest rule" in text


def test_the_table_lists_one_line_per_operation():
    lines = str(hs.check(nn.Sequential(nn.Flatten(), nn.Linear(768, 2), nn.ReLU()), X)).splitlines()
    assert lines[0].split() == ["operation", "calls", "rule", "fidelity", "first", "called", "in"]
    assert sum(line.startswith("torch.") for line in lines) == 3


def test_it_says_for_which_methods_it_holds():
    text = str(hs.check(nn.Linear(3, 1), torch.zeros(2, 3)))
    assert 'the methods "adf" and "sampled_adf"' in text and "the default among them" in text


@pytest.mark.parametrize("method", ["auto", "gradients", "mc_dropout", "noise_sampling", "linear"])
def test_rules_that_a_method_does_not_use_are_told(method):
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval(), torch.rand(2, 3)
    rules = {nn.functional.relu: find(torch.tanh)}
    rate = 0.1 if method == "mc_dropout" else None
    found = hs.Uncertain(net, 0.01, method, rate=rate, samples=8, rules=rules)(x)
    assert any("`rules` is not used" in note for note in found.notes)


def test_rules_that_a_method_uses_change_it():
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval(), torch.rand(2, 3)
    rules = {nn.functional.relu: find(torch.tanh)}
    plain, other = (hs.Uncertain(net, 0.01, "adf", rules=r)(x) for r in (None, rules))
    assert not torch.equal(plain.mean, other.mean) and other.notes == plain.notes
