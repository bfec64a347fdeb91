"""Far from all known inputs a network is never surer than on them, dead or saturated."""

import pytest
import torch
from torch import nn

import howsure as hs

SCALES = (10.0, 30.0, 100.0, 1000.0)


class Radial(nn.Module):
    """Radial basis functions, all 0 far away."""

    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(30, 3))
        self.last = nn.Linear(30, 1)

    def forward(self, x):
        return self.last((-(x[:, None] - self.centers).square().sum(2)).exp())


class Positive(nn.Module):
    """A first layer that knows positive inputs alone, and is dead for all others."""

    def __init__(self, activation):
        super().__init__()
        self.first, self.last = nn.Linear(3, 30), nn.Linear(30, 1)
        self.activation = activation
        with torch.no_grad():
            self.first.weight.abs_()
            self.first.bias.zero_()

    def forward(self, x):
        return self.last(self.activation(self.first(x)))


def layered(activation, head):
    hidden = nn.Linear(3, 30), activation(), nn.Linear(30, 30), activation()
    return nn.Sequential(*hidden, nn.Linear(30, 1), head())


def pictures(activation):
    layers = nn.Conv2d(1, 6, 3), activation(), nn.Conv2d(6, 6, 3), activation()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1))


ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh)
HEADS = (nn.Identity, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.ReLU)
NETWORKS = {
    **{
        f"{activation.__name__}, {head.__name__}, seed {seed}": (
            seed,
            lambda activation=activation, head=head: layered(activation, head),
        )
        for seed, (activation, head) in enumerate((a, h) for a in ACTIVATIONS for h in HEADS)
    },
    **{
        f"dead first layer, {activation.__name__}, seed {seed}": (
            seed,
            lambda activation=activation: Positive(activation()),
        )
        for activation in ACTIVATIONS
        for seed in range(2)
    },
    **{f"radial, seed {seed}": (seed, Radial) for seed in range(5)},
    **{
        f"pictures, {activation.__name__}, seed {seed}": (
            seed,
            lambda activation=activation: pictures(activation),
        )
        for activation in ACTIVATIONS
        for seed in range(2)
    },
}


def trained(name):
    """A network, and 400 inputs with their targets."""
    seed, make = NETWORKS[name]
    torch.manual_seed(seed)
    net = make()
    shape = (400, 1, 8, 8) if name.startswith("pictures") else (400, 3)
    x = torch.rand(shape) if "dead" in name or "pictures" in name else torch.randn(shape)
    flat = x.flatten(1)
    y = (torch.sin(3 * flat[:, :1]) * flat[:, 1:2]).sigmoid() + 0.05 * torch.randn(400, 1)
    step = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        step.zero_grad()
        (net(x[:200]) - y[:200]).square().mean().backward()
        step.step()
    return net.eval(), x, y


def test_there_are_at_least_thirty():
    assert len(NETWORKS) >= 30


def is_repeated(name):
    """Whether a network is another one but for its seed."""
    return name.startswith(("dead", "radial", "pictures")) and not name.endswith("seed 0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if is_repeated(n) else ()) for n in NETWORKS],
)
def test_what_is_far_is_new_and_unsure(name):
    net, x, y = trained(name)
    sure = hs.Uncertain(net, 1e-4, samples=16)
    sure.fit([(x[200:], y[200:])], train_inputs=x[:200], stress=None, show_progress=False)
    known = sure(x[200:])
    generator = torch.Generator().manual_seed(0)
    for scale in SCALES:
        sign = 2.0 * torch.randint(2, x[:40].shape, generator=generator) - 1
        # At least so many times outside in some number, on either side.
        new = scale * sign * (x[200:240].abs() + x.abs().max() / 3)
        for far in (new, new.abs(), -new.abs()):
            p = sure(far)
            assert float(p.novelty.min()) > 3, scale
            assert float(p.std.min()) >= float(known.std.median()), scale
