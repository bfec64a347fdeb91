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
    assert "torch.special.i0" in text and 'fallback="linearize"' in text
    assert "torch.nn.functional.max_pool2d` is the weakest rule" in text


def test_a_model_that_takes_gradients_itself_is_looked_at_as_far_as_it_goes():
    energy = nn.Linear(5, 1)

    def force(x):
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            return torch.autograd.grad(energy(x).square().sum(), x)[0]

    result = hs.check(force, torch.rand(3, 5))
    missing = {row.operation: row.reason for row in result.missing}
    assert set(missing) >= {"torch.autograd.grad", "the rest of the model"}
    assert "not checked" in missing["the rest of the model"]


def test_an_error_of_the_model_itself_is_raised():
    with pytest.raises(ValueError, match="its own"):
        hs.check(lambda x: (_ for _ in ()).throw(ValueError("its own")), X)


def test_the_table_lists_one_line_per_operation():
    lines = str(hs.check(nn.Sequential(nn.Flatten(), nn.Linear(768, 2), nn.ReLU()), X)).splitlines()
    assert lines[0].split() == ["operation", "calls", "rule", "fidelity", "first", "called", "in"]
    assert sum(line.startswith("torch.") for line in lines) == 3


def test_it_says_for_which_methods_it_holds():
    text = str(hs.check(nn.Linear(3, 1), torch.zeros(2, 3)))
    assert 'the methods "adf" and "sampled_adf"' in text and "including the default" in text


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


class Cell(nn.Module):
    """Two inputs and an option."""

    def __init__(self):
        super().__init__()
        self.of_x, self.of_h = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x, h, scale=1.0):
        return torch.tanh(self.of_x(x) + self.of_h(h)) * scale


CELL, CELL_X, CELL_H = Cell().eval(), torch.rand(2, 3), torch.rand(2, 4)
# Inputs, given in every way that the model itself or a data set gives them.
GIVEN = {
    "by position": ((CELL_X, CELL_H), {}),
    "by name": ((), {"x": CELL_X, "h": CELL_H}),
    "as a tuple": (((CELL_X, CELL_H),), {}),
    "as a dict": (({"x": CELL_X, "h": CELL_H},), {}),
}


@pytest.mark.parametrize(("args", "named"), GIVEN.values(), ids=GIVEN)
def test_inputs_are_given_as_to_the_model(args, named):
    rows = {row.operation: row.count for row in hs.check(CELL, *args, **named).rows}
    assert rows["torch.nn.functional.linear"] == 2 and rows["torch.tanh"] == 1
    assert hs.missing_rules(CELL, *args, **named) == []
    by_name = bool(named) or isinstance(args[0], dict)
    var = {"x": 0.01} if by_name else (0.01, None)
    assert [row.module for row in hs.trace(CELL, *args, noise_var=var, **named)] == ["of_x", ""]


def test_the_noise_says_which_of_several_inputs_is_noisy():
    rows = hs.check(CELL, CELL_X, CELL_H, noise_var=(None, 0.01)).rows
    assert {row.operation: row.modules for row in rows}["torch.nn.functional.linear"] == ("of_h",)


def test_a_noise_may_be_that_of_one_of_several_inputs():
    noise = (None, hs.noise.std(0.1))
    assert hs.check(CELL, CELL_X, CELL_H, noise_var=noise).ok
    assert hs.missing_rules(CELL, CELL_X, CELL_H, noise_var=noise) == []
    by_noise = hs.trace(CELL, CELL_X, CELL_H, noise_var=noise)
    by_variance = hs.trace(CELL, CELL_X, CELL_H, noise_var=(None, 0.01))
    assert [row.var for row in by_noise] == pytest.approx([row.var for row in by_variance])


@pytest.mark.parametrize("ask", [hs.check, hs.missing_rules, hs.trace])
def test_a_number_after_the_inputs_is_not_guessed_to_be_one(ask):
    """It was the variance in version 0.1."""
    with pytest.raises(TypeError, match=r"Is 0\.01 an input or a variance.*`noise_var=0\.01`"):
        ask(CELL, CELL_X, CELL_H, 0.01)
    given = (CELL, CELL_X, CELL_H, 2.0)
    assert ask(*given, noise_var=(0.01, None, None)) is not None


@pytest.mark.parametrize("ask", [hs.check, hs.missing_rules, hs.trace])
def test_half_named_inputs_and_no_inputs_are_refused(ask):
    with pytest.raises(TypeError, match="all inputs by position or all by keyword"):
        ask(CELL, CELL_X, h=CELL_H, noise_var=0.01)
    with pytest.raises(TypeError, match="There is no input"):
        ask(CELL, noise_var=0.01)


def test_trace_needs_a_variance():
    with pytest.raises(TypeError, match="pass `noise_var=`"):
        hs.trace(CELL, CELL_X, CELL_H)
