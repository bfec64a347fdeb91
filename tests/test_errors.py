"""Bad input and operations without a rule: one clear sentence each, and nothing passes silently."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from nets import FunctionalResNet

X = torch.rand(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("variance", "message"),
    [
        (-0.1, "negative"),
        (torch.tensor([-0.1, 0.1, 0.1]).reshape(3, 1, 1), "negative"),
        (float("nan"), "NaN or infinity"),
        (float("inf"), "NaN or infinity"),
        (torch.tensor(float("nan")), "NaN or infinity"),
        (torch.rand(5), "does not broadcast"),
    ],
)
def test_bad_variance(variance, message):
    with pytest.raises(ValueError, match=message):
        hs.propagate(nn.ReLU(), X, variance)


def test_bad_inputs():
    with pytest.raises(TypeError, match="only floating-point inputs"):
        hs.propagate(nn.ReLU(), torch.ones(3, dtype=torch.int64), 0.1)
    with pytest.raises(ValueError, match="NaN or infinity"):
        hs.propagate(nn.ReLU(), torch.tensor([1.0, float("nan")]), 0.1)
    with pytest.raises(TypeError, match="must be a tuple of 2"):
        hs.propagate(lambda a, b: a + b, (X, X), 0.1)
    with pytest.raises(ValueError, match="has 2 parts"):
        hs.propagate(lambda a, b: a + b, (X, X), (0.1,))
    with pytest.raises(ValueError, match="'lidar', which is not among the inputs"):
        hs.propagate(lambda image: image, {"image": X}, {"lidar": 0.1})
    with pytest.raises(TypeError, match="structure"):
        hs.propagate(lambda image: image, {"image": [X]}, {"image": 0.1})


def test_train_mode_is_refused_with_the_remedy():
    with pytest.raises(hs.NoRuleError, match=r"`norm` is in train mode.*model\.eval\(\)"):
        hs.propagate(FunctionalResNet().train(), X, 0.1)
    with pytest.raises(hs.NoRuleError, match=r"model\.eval\(\)"):
        hs.propagate(nn.Dropout(0.5).train(), X, 0.1)
    without = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with pytest.raises(hs.NoRuleError, match="running statistics"):
        hs.propagate(without, X, 0.1)


def test_error_names_operation_module_shapes_and_remedy():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.special.i0(x)

    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(Inner()))
    with pytest.raises(hs.NoRuleError) as error:
        hs.propagate(net, X, 0.1)
    for part in ("`torch.special.i0`", "`1.0`", "(2, 4, 8, 8)", "@howsure.rule(torch.special.i0"):
        assert part in str(error.value)
    assert error.value.operation is torch.special.i0


SILENT = {
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: x if x.sum() else -x,
    "comparison": lambda x: x > 0,
    "mask": lambda x: x[x > 0],
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "argmax": lambda x: x.argmax(1),
    "round": lambda x: x.round(),
    "long": lambda x: x.to(torch.int64),
    "deepcopy": lambda x: copy.deepcopy(x),
    "script": torch.jit.script(nn.ReLU()),
    "traced": torch.jit.trace(nn.Conv2d(3, 3, 1), X),
    "into a constant": lambda x: torch.zeros(2, 3, 8, 8).add_(x),
    "assignment to a constant": lambda x: torch.zeros(2, 3, 8, 8).__setitem__(0, x[0]),
    "index": lambda x: torch.arange(10)[x],
    "new tensor of it": lambda x: x.new_tensor(x),
    "full of it": lambda x: torch.full_like(x, x.sum()),
    "out": lambda x: torch.add(x, x, out=torch.zeros(2, 3, 8, 8)),
    "pool indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "no rule": lambda x: torch.linalg.svdvals(x),
    "train-mode dropout": lambda x: F.dropout(x, 0.5, True),
    "backward": lambda x: x.sum().backward(),
    "storage": lambda x: x.data_ptr(),
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_falls_through_silently(name):
    with pytest.raises(hs.NoRuleError) as error:
        hs.propagate(SILENT[name], X, 0.1)
    assert len(str(error.value)) > 60


def test_custom_autograd_functions_are_looked_into():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    out = hs.propagate(Double.apply, X, 0.1)
    torch.testing.assert_close(out.var, torch.full_like(X, 0.4))


def test_detach_keeps_the_variance():
    assert torch.equal(hs.propagate(lambda x: x.detach(), X, 0.1).var, torch.full_like(X, 0.1))
    assert torch.equal(hs.propagate(lambda x: x.data, X, 0.1).var, torch.full_like(X, 0.1))


def test_printing_inside_a_model_is_harmless(capsys):
    hs.propagate(lambda x: (print(x), repr(x), x)[-1], X, 0.1)
    assert "Gaussian(shape=(2, 3, 8, 8))" in capsys.readouterr().out


def test_writes_through_views_are_refused_when_they_would_matter():
    def harmless(x):
        flat = x.view(2, -1)
        flat += 1
        return flat

    def wrong(x):
        flat = x.view(2, -1)
        flat += 1
        return x

    torch.testing.assert_close(hs.propagate(harmless, X, 0.1).mean, X.view(2, -1) + 1)
    with pytest.raises(hs.NoRuleError, match="changed in place"):
        hs.propagate(wrong, X, 0.1)


def test_in_place_operations_change_the_carrier_itself():
    def model(x):
        y = x.clone()
        y.relu_()
        y[:, 0] = 0.0
        torch.nn.functional.hardtanh(y, -1.0, 1.0, True)
        return y

    out = hs.propagate(model, X - 0.5, 0.1)
    expected = torch.relu(X - 0.5)
    assert bool((out.var[:, 0] == 0).all()) and bool((out.mean[:, 1:] > expected[:, 1:]).any())


def test_assignment_into_a_tensor_made_like_the_input():
    def model(x):
        canvas = torch.zeros_like(x)
        canvas[:, 1] = x[:, 0] * 2
        return canvas

    out = hs.propagate(model, X, 0.1)
    assert bool((out.var[:, 1] == 0.4).all()) and bool((out.var[:, 0] == 0).all())


def test_missing_rules_lists_everything_from_one_run():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            y = torch.special.i0(torch.special.i0(self.inner(x)))
            if y.mean() > 0:
                y = torch.special.i1(y)
            return y

    missing = hs.missing_rules(Net(), X)
    assert [(m.operation, m.count) for m in missing] == [
        ("torch.special.i0", 2),
        ("torch.Tensor.gt", 1),
        ("torch.special.i1", 1),
    ]
    assert missing[0].shapes == ((2, 4, 8, 8),)
    assert re.search("2 x", str(missing[0]))
    assert hs.missing_rules(FunctionalResNet(), X) == []


def test_augmented_assignment_to_a_part_is_followed():
    def model(x):
        y = x.clone()
        y[:, 1:] += x[:, :-1]
        y[:, 0] *= 2
        return y

    out = hs.propagate(model, X, 0.1)
    torch.testing.assert_close(out.mean, model(X))
    torch.testing.assert_close(out.var[:, 1:], torch.full_like(X[:, 1:], 0.2))
    torch.testing.assert_close(out.var[:, 0], torch.full_like(X[:, 0], 0.4))

    def other_part(x):
        part = x[:, 0]
        part += 1
        x[:, 1] = part
        return x

    with pytest.raises(hs.NoRuleError, match="changed in place"):
        hs.propagate(other_part, X, 0.1)


def test_masks_built_from_the_input_are_ordinary_tensors_until_written_to():
    def shifted_window_mask(x):
        regions = x.new_zeros(8, 8)
        regions[4:] = 1
        mask = (regions[:, None] - regions[None, :]).sum(-1)
        mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
        return x + mask

    out = hs.propagate(shifted_window_mask, X, 0.1)
    torch.testing.assert_close(out.mean, shifted_window_mask(X))
    torch.testing.assert_close(out.var, torch.full_like(X, 0.1))
    assert hs.propagate(lambda x: x if bool((x.new_ones(3) > 0).all()) else -x, X, 0.1)


def test_the_values_of_a_maximum_can_be_used_but_not_its_position():
    values = hs.propagate(lambda x: torch.max(x, 2, keepdim=True)[0], X, 0.01)
    torch.testing.assert_close(values.var, hs.propagate(lambda x: x.amax(2, True), X, 0.01).var)
    assert hs.propagate(lambda x: x.min(1).values, X, 0.01).var.shape == (2, 8, 8)
    with pytest.raises(hs.NoRuleError, match="position of the largest"):
        hs.propagate(lambda x: x.gather(2, x.max(2, keepdim=True)[1]), X, 0.01)
