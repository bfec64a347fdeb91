"""The network from readings to model errors, and several of them trained at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.quadrotor.readings import COUNT

OUTPUTS = 6
WIDTH = 64
_LINEAR = (0, 2, 4)  # which layers of a network have weights


class ErrorNetwork(nn.Module):
    """A perceptron from readings to errors; both are standardized inside, errors stay so."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Buffer(torch.zeros(COUNT))
        self.spread = nn.Buffer(torch.ones(COUNT))
        self.layers = nn.Sequential(
            nn.Linear(COUNT, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, OUTPUTS),
        )  # fmt: skip

    def forward(self, readings: Tensor) -> Tensor:  # (n, 14) -> (n, 6)
        """Errors in units of their size in training: comparable, so that a mean makes sense."""
        return self.layers((readings - self.center) / self.spread)


class Siblings(nn.Module):
    """Several networks that differ in their first weights only, as batched layers: trains fast."""

    def __init__(self, count: int, data: Pairs) -> None:
        super().__init__()
        self.center = nn.Buffer(data.x.mean(0))
        self.spread = nn.Buffer(data.x.std(0))
        first = [ErrorNetwork().state_dict() for _ in range(count)]
        self.weights = nn.ParameterList(
            [torch.stack([net[f"layers.{i}.weight"].T for net in first]) for i in _LINEAR]
        )
        self.biases = nn.ParameterList(
            [torch.stack([net[f"layers.{i}.bias"][None] for net in first]) for i in _LINEAR]
        )

    def forward(self, readings: Tensor) -> Tensor:  # (n, 14) -> (networks, n, 6)
        """The errors that every network predicts."""
        x = ((readings - self.center) / self.spread).expand(len(self.weights[0]), -1, -1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = torch.relu(x) if i < last else x
        return x

    def apart(self) -> list[ErrorNetwork]:
        """The networks one by one, ready for use."""
        return [self._one(index) for index in range(len(self.weights[0]))]

    def _one(self, index: int) -> ErrorNetwork:
        state = {"center": self.center, "spread": self.spread}
        for layer, weight, bias in zip(_LINEAR, self.weights, self.biases, strict=True):
            state[f"layers.{layer}.weight"] = weight[index].T
            state[f"layers.{layer}.bias"] = bias[index, 0]
        network = ErrorNetwork()
        network.load_state_dict(state)
        return network.eval().requires_grad_(False)


def absolute_error(found: Tensor, errors: Tensor) -> Tensor:  # (networks, n, 6), (n, 6)
    """The L1 loss of the paper, mean over networks; its gradient has the size of a single one's."""
    return (found - errors).abs().mean() * len(found)
