"""The default on networks as robots have them, against plain Monte Carlo."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs


class Policy(nn.Module):
    """An actor as in Stable-Baselines3: a distribution that validates its arguments."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mean, self.log_std = nn.Linear(32, 3), nn.Parameter(-torch.ones(3))

    def forward(self, observation):
        mean = self.mean(self.body(observation))
        spread = self.log_std.exp() * (1 + mean.detach().new_zeros(()))
        actions = torch.distributions.Normal(mean, spread, validate_args=True)
        return torch.tanh(actions.mean)


class Categories(Policy):
    """Its discrete sister: class probabilities out of a Categorical."""

    def forward(self, observation):
        logits = self.mean(self.body(observation))
        return torch.distributions.Categorical(logits=logits, validate_args=True).probs


class CutOff(nn.Module):
    """Energies of atoms: pairs within a cut-off, chosen by comparing noisy distances."""

    def __init__(self):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, positions):  # (batch, atoms, 3)
        gaps = positions[:, :, None] - positions[:, None]
        distance = gaps.square().sum(3).add(1e-6).sqrt()
        atoms = positions.shape[1]
        inside = (distance < 2) & ~torch.eye(atoms, dtype=torch.bool)
        chosen = distance[inside]
        envelope = (1 - chosen / 2).clamp(min=0).square()
        energy = torch.zeros_like(distance)
        energy[inside] = self.pair(chosen[:, None])[:, 0] * envelope
        return energy.sum((1, 2))[:, None]


class Head(nn.Module):
    """A detector's head: grids of two strides, boxes in pixels, the best of them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 5, 1) for _ in range(2))

    def forward(self, image):
        fine = F.silu(self.first(image))
        coarse = F.silu(self.second(fine))
        boxes = [
            self.decoded(head(features), stride)
            for head, features, stride in zip(self.heads, (fine, coarse), (4, 8), strict=True)
        ]
        found = torch.cat(boxes, 1)
        best = found[..., 4].argmax(1)
        return found[torch.arange(len(found)), best, :4]

    def decoded(self, raw, stride):
        rows, columns = raw.shape[2:]
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        grid = torch.stack((x, y)).type_as(raw)
        center = (raw[:, :2].sigmoid() * 2 - 0.5 + grid) * stride
        size = (raw[:, 2:4].sigmoid() * 2) ** 2 * stride
        return torch.cat((center, size, raw[:, 4:]), 1).flatten(2).mT


@dataclasses.dataclass
class Answer:
    """What transformers return: a structure with more in it than numbers."""

    pose: torch.Tensor
    name: str = "pose"


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(12, 2)

    def forward(self, x):
        return Answer(self.last(F.gelu(F.layer_norm(x, x.shape[1:]))))


def rows(*shape):
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))


CASES = {
    "policy": (Policy, rows(12), 0.1),
    "categorical policy": (Categories, rows(12), 0.1),
    "cut-off": (CutOff, rows(6, 3), 0.02),
    "detector": (Head, rows(3, 32, 32), 0.02),
    "structured output": (Structured, rows(12), 0.1),
}


def numbers(output):
    return output.pose if isinstance(output, Answer) else output


@torch.no_grad()
def outputs_of(net, noisy):
    """The outputs of all samples, 100 of them as one batch: rows do not influence each other."""
    found = torch.cat([numbers(net(each.flatten(0, 1))) for each in noisy.split(100)])
    by_sample = found.unflatten(0, noisy.shape[:2])
    torch.testing.assert_close(by_sample[-1], numbers(net(noisy[-1])), rtol=1e-4, atol=1e-5)
    return by_sample


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["auto", "gradients"])
def test_agrees_with_monte_carlo(name, method):
    make, x, std = CASES[name]
    torch.manual_seed(0)
    net = make().eval()
    samples = 4000
    noisy = x + std * torch.randn(samples, *x.shape, generator=torch.Generator().manual_seed(2))
    true = outputs_of(net, noisy).std(0)
    p = hs.Uncertain(net, std**2, method)(x)
    found, error = numbers(p.std), numbers(p.std_error)
    limit = 5 * (error.square() + true.square() / (2 * samples)).sqrt() + 0.02 * true
    assert ((found - true).abs() < limit).all()
    # The noise is small enough for its own step to be met by few samples, if at all.
    assert float((found / true).log().abs().mean()) < 0.25
