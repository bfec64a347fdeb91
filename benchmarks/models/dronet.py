"""DroNet (Loquercio et al. 2018): a ResNet-8 with a steering and a collision output."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DroNet(nn.Module):
    """The steering output of DroNet; the collision output on request."""

    def __init__(self, *, collision: bool = False) -> None:
        super().__init__()
        widths = (32, 32, 64, 128)
        pairs = list(itertools.pairwise(widths))
        self.conv1 = nn.Conv2d(1, 32, 5, stride=2)
        norms = (32, 32, 32, 64, 64, 128)
        self.bn = nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for width in norms)
        self.a = nn.ModuleList(nn.Conv2d(n, m, 3, stride=2, padding=1) for n, m in pairs)
        self.b = nn.ModuleList(nn.Conv2d(m, m, 3, padding=1) for _, m in pairs)
        self.s = nn.ModuleList(nn.Conv2d(n, m, 1, stride=2) for n, m in pairs)
        self.steer = nn.Linear(6272, 1)
        self.coll = nn.Linear(6272, 1)
        self.collision = collision

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.conv1(F.pad(x, (1, 2, 1, 2))), 3, 2)
        for k in range(3):
            out = self.a[k](F.relu(self.bn[2 * k](x)))
            out = self.b[k](F.relu(self.bn[2 * k + 1](out)))
            x = out + self.s[k](x)
        x = F.relu(x.permute(0, 2, 3, 1).flatten(1))
        steer = self.steer(x)
        return (steer, torch.sigmoid(self.coll(x))) if self.collision else steer


def load(folder: Path, *, collision: bool = False) -> DroNet:
    """The authors' trained DroNet from `folder`, in eval mode."""
    model = DroNet(collision=collision)
    model.load_state_dict(torch.load(folder / "dronet_torch.pt", weights_only=True))
    return model.eval().requires_grad_(False)
