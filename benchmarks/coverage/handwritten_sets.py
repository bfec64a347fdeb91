"""Unordered inputs: PointNet (Qi 2017) and graph convolution on a dense adjacency (Kipf 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _shared(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU())


class Alignment(nn.Module):
    """Predicts a k x k matrix that turns the points."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.points = nn.Sequential(_shared(k, 16), _shared(16, 32))
        self.matrix = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, k * k))

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.max(self.points(x), 2, keepdim=True)[0].view(-1, 32)
        identity = torch.eye(self.k, device=x.device).view(1, -1).repeat(x.size(0), 1)
        return (self.matrix(pooled) + identity).view(-1, self.k, self.k)


class PointNet(nn.Module):
    """Points (batch, 3, n) to class scores."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.align = Alignment(3)
        self.points = nn.Sequential(_shared(3, 16), _shared(16, 64))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.bmm(x.transpose(2, 1), self.align(x)).transpose(2, 1)
        pooled = self.points(turned).amax(dim=2)
        return F.log_softmax(self.out(self.head(pooled)), dim=1)


class GraphConv(nn.Module):
    """Three rounds of messages over the symmetrically normalized adjacency, then a mean."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(dim=-1).rsqrt()
        messages = degree[:, None] * adjacency * degree[None, :]
        for layer in self.layers:
            nodes = F.elu(messages @ layer(nodes))
        return self.out(torch.einsum("ij,bjc->bic", messages, nodes).mean(dim=1))
