"""Outputs in half precision, of several types, and beside indices and masks."""

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs

METHODS = {
    "noise_sampling": {"noise": 0.01},
    "linear": {"noise": 0.01},
    "mc_dropout": {"rate": 0.1},
    "sampled_adf": {"noise": 0.01, "rate": 0.1, "samples": 8},
}


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
        self.scale = scale

    def forward(self, x):
        return self.net(x) * self.scale


class Detector(Scaled):
    """Numbers, an index, a mask and a name."""

    def forward(self, x):
        y = self.net(x)
        return {"box": y, "class": y.argmax(1), "seen": y > 0, "name": "net"}


class Mixed(Scaled):
    def forward(self, x):
        y = self.net(x)
        return y.half(), y * 1e6, (y * 1e-9).double()


def sure_of(model, method):
    return hs.Uncertain(model, method=method, **METHODS[method])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-3, 2e4])
def test_half_precision_has_a_variance_beyond_its_own_range(method, scale):
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    half = sure_of(Scaled(scale).eval().half(), method)(x.half())
    single = sure_of(Scaled(scale).eval(), method)(x)
    assert half.mean.dtype == torch.float16 and half.std.dtype == torch.float32
    torch.testing.assert_close(half.std, single.std, rtol=0.03, atol=0.0)


@pytest.mark.parametrize("method", ["noise_sampling", "linear", "mc_dropout"])
def test_indices_and_masks_have_no_variance(method):
    model, x = Detector(1.0).eval(), torch.randn(5, 20)
    p = sure_of(model, method)(x)
    assert p.std["class"] == p.std["seen"] == p.data_var["class"] == p.model_var["seen"] == 0
    with torch.no_grad():
        plain = model(x)
    low, high = p.interval(0.9)
    for key in ("class", "seen"):
        assert torch.equal(p.mean[key], plain[key])
        assert torch.equal(low[key], plain[key]) and torch.equal(high[key], plain[key])
        assert torch.equal(p[1:3].mean[key], plain[key][1:3])
    assert list(p.to_pandas()) == list(p[:2].to_pandas())


@pytest.mark.parametrize("method", ["noise_sampling", "gradients"])
def test_batches_are_joined_with_their_indices(method):
    model, x = Detector(1.0).eval(), torch.randn(5, 20)
    sure = hs.Uncertain(model, 0.01, method)
    p = sure.predict([x[:3], x[3:]], show_progress=False)
    with torch.no_grad():
        plain = model(x)
    assert torch.equal(p.mean["class"], plain["class"])
    assert torch.equal(p.mean["seen"], plain["seen"])
    assert p.mean["name"] == "net"


@pytest.mark.parametrize("method", ["noise_sampling", "linear"])
def test_every_output_keeps_its_type(method):
    model, x = Mixed(1.0).eval(), torch.randn(4, 20)
    p = hs.Uncertain(model, 0.01, method, prediction="network")(x)
    with torch.no_grad():
        plain = model(x)
    for mean, std, own in zip(p.mean, p.std, plain, strict=True):
        assert mean.dtype == own.dtype and torch.equal(mean, own)
        assert bool((std > 0).all() and std.isfinite().all())
    torch.testing.assert_close(p.std[1], 1e6 * p.std[0], rtol=1e-2, atol=0.0)


def test_arrays_in_any_order_of_memory():
    model = Scaled(1.0).eval()
    array = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    sure = hs.Uncertain(model, 0.01, "linear")
    backwards = sure(array[:, ::-1])
    assert torch.equal(backwards.mean, sure(torch.tensor(array[:, ::-1].copy())).mean)
    swapped = array.astype(">f4")
    assert torch.equal(sure(swapped).mean, sure(array).mean)
    array.flags.writeable = False
    assert torch.equal(sure(array).mean, sure(swapped).mean)
