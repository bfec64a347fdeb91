"""Ordinary activations in ONNX files, by rules and by gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from exports import EXPORTED, assert_same, in_onnxruntime, needs_onnx
from howsure import export
from howsure.deploy.tracing import traced
from howsure.errors import ExportError

pytestmark = EXPORTED

ACTIVATIONS = {
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "softmax": lambda x: x.softmax(1),
    "hardtanh": lambda x: F.hardtanh(x, 0, 1.5),
    "clamp": lambda x: x.clamp(-1, 1.5),
    "clip by keyword": lambda x: torch.clip(x, min=-0.5, max=2),
}
FAST = {("silu", "gradients"), ("gelu", "adf")}


class Net(nn.Module):
    def __init__(self, activation):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.activation = nn.Linear(6, 8), nn.Linear(8, 1), activation

    def forward(self, x):
        return self.last(self.activation(self.first(x)))


@needs_onnx
@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(n, m, marks=() if (n, m) in FAST else pytest.mark.slow)
        for n in ACTIVATIONS
        for m in ("gradients", "adf")
    ],
)
def test_activations_in_onnxruntime(name, method, tmp_path):
    sure = hs.Uncertain(Net(ACTIVATIONS[name]).eval(), 0.01, method)
    export(sure, torch.rand(4, 6), tmp_path / "net.onnx")
    run = in_onnxruntime(tmp_path / "net.onnx")
    for batch in (1, 5):
        x = torch.rand(batch, 6)
        assert_same(run(x), sure(x))


@pytest.mark.parametrize("function", [F.silu, F.mish])
def test_gradients_as_forward_operations(function):
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)

    x = torch.linspace(-60, 60, 241, dtype=torch.float64)
    graph = traced(gradient, [x])
    assert not [node for node in graph.graph.nodes if "backward" in str(node.target)]
    torch.testing.assert_close(graph(x)[0], gradient(x)[0])


@pytest.mark.parametrize("limits", [(0, 1.5), (-1.5, 2), (0, 6), (None, 2.5), (0.5, None)])
def test_limits_of_one_kind(limits):
    graph = traced(lambda x: [x.clamp(*limits), torch.clamp(x, max=2, min=0.5)], [torch.rand(9)])
    nodes = [node for node in graph.graph.nodes if "clamp" in str(node.target)]
    assert len(nodes) == 2
    for node in nodes:
        numbers = [a for a in (*node.args[1:], *node.kwargs.values()) if a is not None]
        assert len({type(number) for number in numbers}) == 1
    x = torch.linspace(-4, 9, 9)
    torch.testing.assert_close(graph(x), [x.clamp(*limits), x.clamp(0.5, 2)])


@needs_onnx
def test_what_onnx_lacks_is_named_in_a_line(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("\x1b[96mstep\x1b[0m 2/3\n\n## Exception summary\n\nno op `x`\nmore")

    monkeypatch.setattr(torch.onnx, "export", fails)
    sure = hs.Uncertain(Net(torch.relu).eval(), 0.01, "adf")
    with pytest.raises(ExportError) as caught:
        export(sure, torch.rand(4, 6), tmp_path / "net.onnx")
    assert str(caught.value).endswith("has: no op `x`")
