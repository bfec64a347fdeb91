"""The std by plain samples, and whether a prediction agrees with it."""

import torch
from torch import nn


class Network(nn.Module):
    """A hidden layer goes through a function that autograd cannot see through."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(70, 30), nn.Linear(30, 2), function

    def forward(self, x):
        return self.last(self.function(torch.tanh(self.first(x))))


def monte_carlo(net, x, std, samples=4000):
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        draws = [net(x + std * torch.randn(x.shape, generator=generator)) for _ in range(samples)]
    return torch.stack(draws).std(0)


def agrees(p, net, x, std=0.3):
    return float((p.std / monte_carlo(net, x, std) - 1).abs().max()) < 0.25


class WithOut(nn.Module):
    """Runs without gradients only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(5, 2).requires_grad_(False)

    def forward(self, x):
        torch.mul(x, 2.0, out=x)
        return self.last(x)
