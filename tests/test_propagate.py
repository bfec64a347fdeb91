"""Whole networks: exact without noise, true for linear networks, and never a changed model."""

import copy
from collections import namedtuple

import pytest
import torch
from torch import nn

import howsure as hs
from nets import FunctionalResNet, TwoSensors

Pair = namedtuple("Pair", ["left", "right"])


def images(count=2):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("variance", [0.0, torch.zeros(3, 1, 1), torch.zeros(2, 3, 16, 16)])
def test_without_noise_the_result_is_the_plain_forward(variance):
    net, x = FunctionalResNet(), images()
    out = hs.propagate(net, x, variance)
    torch.testing.assert_close(out.mean, net(x), rtol=1e-6, atol=1e-6)
    assert torch.equal(out.var, torch.zeros_like(out.mean))


def test_linear_network_has_the_closed_form_variance():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x, var = torch.rand(4, 3, 4).double(), torch.rand(4, 3, 4).double()
    out = hs.propagate(net, x, var)
    expected = var.reshape(4, 12) @ net[1].weight.square().T
    torch.testing.assert_close(out.var, expected)
    torch.testing.assert_close(out.mean, net(x))


def test_one_hidden_layer_agrees_with_sampling():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 1), nn.ReLU()).double()
    x, std = torch.randn(6).double(), 0.7
    draws = net(x + std * torch.randn(200_000, 6).double())
    out = hs.propagate(net, x, std**2)
    torch.testing.assert_close(out.mean, draws.mean(0), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(out.var, draws.var(0), rtol=0.03, atol=1e-3)


def test_several_inputs_and_nested_outputs():
    net = TwoSensors().eval()
    image, motion = torch.rand(2, 1, 8, 8), torch.rand(2, 6)
    plain = net(image, motion)
    out = hs.propagate(net, (image, motion), (0.01, None))
    assert isinstance(out.mean["pose"], tuple) and out.mean["time"] == 2
    assert out.var["pose"][0].shape == plain["pose"][0].shape
    assert bool((out.var["pose"][1] > 0).all())
    by_name = hs.propagate(net, {"image": image, "motion": motion}, {"image": 0.01})
    assert torch.equal(by_name.var["pose"][0], out.var["pose"][0])
    only_motion = hs.propagate(net, (image, motion), (None, 0.01))
    assert not torch.equal(only_motion.var["pose"][0], out.var["pose"][0])


def test_a_noise_free_input_leaves_a_constant_output_with_variance_zero():
    out = hs.propagate(lambda a, b: (a * 2, b * 2), (torch.ones(3), torch.ones(3)), (None, 0.5))
    assert torch.equal(out.var[0], torch.zeros(3)) and torch.equal(
        out.var[1], torch.full((3,), 2.0)
    )


def test_lists_named_tuples_and_dicts_as_one_argument():
    def model(inputs):
        return Pair(inputs[0] + inputs[1], inputs[0] - inputs[1])

    x = [torch.ones(2), torch.zeros(2)]
    out = hs.propagate(model, x, [0.1, 0.2])
    assert isinstance(out.mean, Pair)
    torch.testing.assert_close(out.var.left, torch.full((2,), 0.3))
    named = hs.propagate(model, Pair(*x), Pair(0.1, None))
    torch.testing.assert_close(named.var.right, torch.full((2,), 0.1))

    def of_dict(batch):
        return batch["a"] * 3

    wrapped = hs.propagate(of_dict, ({"a": torch.ones(2)},), ({"a": 0.1},))
    torch.testing.assert_close(wrapped.var, torch.full((2,), 0.9))


def test_same_object_is_recognized():
    x, var = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.3])
    torch.testing.assert_close(hs.propagate(lambda t: t + t, x, var).var, 4 * var)
    torch.testing.assert_close(hs.propagate(lambda t: t - t, x, var).var, 0 * var)
    product = hs.propagate(lambda t: t * t, x, var)
    torch.testing.assert_close(product.mean, x.square() + var)
    torch.testing.assert_close(product.var, 2 * var.square() + 4 * x.square() * var)


def test_the_model_is_not_changed_also_after_an_error():
    net = FunctionalResNet()
    before = copy.deepcopy(net.state_dict())
    x = images()
    kept = x.clone()
    hs.propagate(net, x, 0.01)
    hs.trace(net, x, noise_var=0.01)
    net.train()
    with pytest.raises(hs.NoRuleError):
        hs.trace(net, x, noise_var=0.01)
    assert net.training and torch.equal(x, kept)
    assert not any(module._forward_hooks for module in net.modules())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_gradients_reach_weights_input_and_noise():
    net, x = FunctionalResNet(), images().requires_grad_()
    var = torch.full((3, 1, 1), 0.01, requires_grad=True)
    out = hs.propagate(net, x, var)
    (out.mean.square().sum() + out.var.sum()).backward()
    for tensor in (x, var, *net.parameters()):
        assert tensor.grad is not None and bool(torch.isfinite(tensor.grad).all())


def test_a_trained_weight_changes_the_result_at_once():
    net = nn.Linear(4, 2).eval()
    x = torch.rand(3, 4)
    with torch.no_grad():
        before = hs.propagate(net, x, 0.1).var
        net.weight.mul_(2)
        torch.testing.assert_close(hs.propagate(net, x, 0.1).var, 4 * before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_agree_with_float32(dtype):
    net, x = FunctionalResNet(), images()
    reference = hs.propagate(net, x, 0.01)
    out = hs.propagate(copy.deepcopy(net).to(dtype), x.to(dtype), 0.01)
    assert out.mean.dtype == dtype
    torch.testing.assert_close(out.var.float(), reference.var, rtol=0.05, atol=1e-7)


def test_runs_inside_vmap_and_inference_mode():
    net, x = FunctionalResNet(), images(3)
    expected = hs.propagate(net, x, 0.01)

    def one(image):
        out = hs.propagate(net, image[None], 0.01)
        return out.mean[0], out.var[0]

    with torch.inference_mode():
        mean, var = torch.vmap(one)(x)
    torch.testing.assert_close(mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(var, expected.var, rtol=1e-4, atol=1e-8)


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # torch 2.6, about its own export
def test_propagation_itself_can_be_exported():
    class WithVariance(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = FunctionalResNet()

        def forward(self, x):
            out = hs.propagate(self.net, x, 0.01)
            return out.mean, out.var

    module, x = WithVariance().eval(), images()
    exported = torch.export.export(module, (x,), strict=False).module()
    for got, expected in zip(exported(x), module(x), strict=True):
        torch.testing.assert_close(got, expected)


def test_trace_reports_every_module():
    rows = hs.trace(FunctionalResNet(), images(), noise_var=0.01)
    assert [row.module for row in rows] == [
        "stem",
        "norm",
        "first",
        "first_norm",
        "second",
        "head",
        "",
    ]
    assert all(row.largest_var >= row.var > 0 for row in rows)
