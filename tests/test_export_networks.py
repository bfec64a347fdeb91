"""Exported gradients of many kinds of networks, with any batch size."""

import pytest
import torch
from torch import nn

import howsure as hs
from exports import EXPORTED, assert_same, in_onnxruntime, needs_onnx
from howsure.deploy.export import export

pytestmark = EXPORTED


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def networks():
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
    pool = [conv, norm, nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(8, 1)]
    gelu = [nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)]
    return {
        "convolution": (nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(72, 1)), (1, 8, 8)),
        "pool": (nn.Sequential(*pool), (1, 7, 7)),
        "GELU": (nn.Sequential(*gelu), (4,)),
        "attention": (Attention(), (3, 4)),
        "GRU": (Recurrent(nn.GRU), (2, 4)),
        "LSTM": (Recurrent(nn.LSTM), (2, 4)),
    }


# With dropout in the fast tests; the others are without.
DROPPED = ("convolution", "GELU")
FORMATS = ["pt2", pytest.param("onnx", marks=[needs_onnx, pytest.mark.slow])]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        pytest.param(n, rate, marks=() if bool(rate) is (n in DROPPED) else pytest.mark.slow)
        for n in networks()
        for rate in (None, 0.2)
    ],
)
def test_gradients_of_many_kinds_of_networks(name, rate, suffix, tmp_path):
    model, shape = networks()[name]
    sure = hs.Uncertain(model.eval(), 0.01, "gradients", rate=rate)
    path = tmp_path / f"net.{suffix}"
    assert export(sure, torch.rand(2, *shape), path).batch is None
    run = in_onnxruntime(path) if suffix == "onnx" else torch.export.load(path).module()
    for batch in (1, 5):
        x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(3))
        found = sure(x)
        assert found.notes == ()  # Rows that are sampled eagerly are not in the file.
        assert_same(run(x), found)


@pytest.mark.filterwarnings("ignore:The held-out inputs")
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", ["pool", pytest.param("GELU", marks=pytest.mark.slow)])
def test_a_fitted_posterior_is_exported(tmp_path, name, suffix):
    network, shape = networks()[name]
    sure = hs.Uncertain(network.eval(), 0.001, "gradients")
    held_out = torch.randn(60, *shape)
    with torch.no_grad():
        target = network(held_out)
        sure.fit([(held_out, target + 0.1 * torch.randn_like(target))])
    x, path = torch.randn(3, *shape), tmp_path / f"fitted.{suffix}"
    expected = sure(x)
    export(sure, x, path)
    # The wrapper works as before: the trace has left nothing behind.
    assert torch.equal(sure(x).total_var, expected.total_var)
    run = in_onnxruntime(path) if suffix == "onnx" else torch.export.load(path).module()
    assert_same(run(x), expected)
    assert float(expected.model_var.max()) > 0


@pytest.mark.filterwarnings("ignore:The held-out inputs")
def test_auto_is_exported_with_its_own_number_of_points(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
    held_out = torch.randn(60, 2)
    with torch.no_grad():
        sure = hs.Uncertain(network, 0.01)
        sure.fit([(held_out, network(held_out) + 0.1 * torch.randn(60, 1))])
    x, path = torch.randn(3, 2), tmp_path / "auto.pt2"
    assert sure.choice(x)[1].samples is not None and sure.setup.samples is None
    export(sure, x, path)
    assert sure.setup.samples is None
    assert_same(torch.export.load(path).module()(x), sure(x))


@needs_onnx
def test_adf_with_limits_of_two_types_is_exported(tmp_path):
    """torch's way to ONNX fails on a whole number beside a fraction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardtanh(0, 6.5), nn.Linear(4, 1)).eval()
    sure = hs.Uncertain(model, 0.01, "adf")
    export(sure, torch.rand(2, 3), tmp_path / "net.onnx")
    x = torch.rand(3, 3)
    assert_same(in_onnxruntime(tmp_path / "net.onnx")(x), sure(x))
