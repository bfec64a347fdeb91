"""Dropout sampling on Gaussians as a textbook has it: the baseline of the benchmarks.

Every layer has a twin that takes and gives (mean, variance), a network is written a second time
with the twins, a Python loop runs it T times, and the variance over samples is E[x^2] - E[x]^2.
This is how the code that was released with the paper is made; it is written anew here, with rules
that are right, and without any of the shortcuts of howsure.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure_lab.experiments.steering.model import DroNet

Pair = tuple[Tensor, Tensor]
# Differences of large numbers are kept above 0, where the formulas divide by them.
_SMALLEST = 1e-12
# Around the image of a max pool, below everything that comes out of a ReLU or a first layer.
_OUTSIDE = -10.0


class Linear(nn.Module):
    """A convolution or a matrix product: weights for the mean, their squares for the variance."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Pair) -> Pair:
        mean, var = x
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return layer(mean), F.linear(var, layer.weight**2)
        return layer(mean), F.conv2d(var, layer.weight**2, None, layer.stride, layer.padding)


class BatchNorm(nn.Module):
    """Shift and scale for the mean, the square of the scale for the variance."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Pair) -> Pair:
        mean, var = x
        assert self.layer.running_var is not None
        scale = self.layer.weight**2 / (self.layer.running_var + self.layer.eps)
        return self.layer(mean), var * scale[None, :, None, None]


class ReLU(nn.Module):
    """The moments of max(x, 0) (Frey & Hinton 1999)."""

    def forward(self, x: Pair) -> Pair:
        mean, var = x
        std = torch.sqrt(var)
        ratio = mean / std
        density = torch.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        share = 0.5 * (1.0 + torch.erf(ratio / math.sqrt(2.0)))
        new_mean = mean * share + std * density
        new_var = (mean**2 + var) * share + mean * std * density - new_mean**2
        return new_mean, new_var.clamp(min=_SMALLEST)


def larger(one: Pair, two: Pair) -> Pair:
    """The moments of the larger of two independent Gaussians (Clark 1961)."""
    std = torch.sqrt(one[1] + two[1])
    ratio = (one[0] - two[0]) / std
    density = torch.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    share = 0.5 * (1.0 + torch.erf(ratio / math.sqrt(2.0)))
    mean = one[0] * share + two[0] * (1 - share) + std * density
    second = (one[0] ** 2 + one[1]) * share + (two[0] ** 2 + two[1]) * (1 - share)
    second = second + (one[0] + two[0]) * std * density
    return mean, (second - mean**2).clamp(min=_SMALLEST)


class MaxPool(nn.Module):
    """The maximum of three columns, then of three rows, two at a time."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, x: Pair) -> Pair:
        around = (self.padding,) * 4
        mean, var = F.pad(x[0], around, value=_OUTSIDE), F.pad(x[1], around, value=_SMALLEST)
        for axis in (-1, -2):
            parts = [(_every_second(mean, axis, i), _every_second(var, axis, i)) for i in range(3)]
            mean, var = larger(larger(parts[0], parts[1]), parts[2])
        return mean, var


def _every_second(x: Tensor, axis: int, start: int) -> Tensor:
    """What is at place `start` of windows of 3 that are 2 apart."""
    count = (x.shape[axis] - 3) // 2 + 1
    return x.narrow(axis, start, 2 * count - 1).unfold(axis, 1, 2).squeeze(-1)


class Dropout(nn.Module):
    """Drops whole channels, also at test time; the variance with the square of the mask."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Pair) -> Pair:
        mean, var = x
        mask = F.dropout2d(torch.ones_like(mean[:, :, :1, :1]), self.rate)
        return mean * mask, var * mask**2 + _SMALLEST


class TwinBlock(nn.Module):
    """The twin of a block of ResNet-18."""

    def __init__(self, block: Any, rate: float) -> None:
        super().__init__()
        self.conv1, self.bn1 = Linear(block.conv1), BatchNorm(block.bn1)
        self.conv2, self.bn2 = Linear(block.conv2), BatchNorm(block.bn2)
        self.relu, self.drop = ReLU(), Dropout(rate)
        twins = (Linear, BatchNorm)
        pairs = zip(twins, block.shortcut, strict=False)
        self.shortcut = nn.Sequential(*(twin(layer) for twin, layer in pairs))
        if len(self.shortcut):
            self.shortcut.append(Dropout(rate))

    def forward(self, x: Pair) -> Pair:
        out = self.drop(self.relu(self.bn1(self.conv1(x))))
        out = self.drop(self.bn2(self.conv2(out)))
        aside = self.shortcut(x)
        return self.relu((out[0] + aside[0], out[1] + aside[1]))


class TwinResNet(nn.Module):
    """The twin of ResNet-18, with dropout after every convolution."""

    def __init__(self, net: Any, rate: float) -> None:
        super().__init__()
        self.conv1, self.bn1 = Linear(net.conv1), BatchNorm(net.bn1)
        self.relu, self.drop, self.pool = ReLU(), Dropout(rate), MaxPool(1)
        blocks = (block for stage in net.layers for block in stage)
        self.blocks = nn.Sequential(*(TwinBlock(block, rate) for block in blocks))
        self.fc = Linear(net.fc)

    def forward(self, x: Pair) -> Pair:
        x = self.pool(self.drop(self.relu(self.bn1(self.conv1(x)))))
        mean, var = self.blocks(x)
        return self.fc((mean.mean((2, 3)), var.mean((2, 3)) / mean[0, 0].numel()))


class TwinDroNet(nn.Module):
    """The twin of DroNet, with dropout after every convolution."""

    def __init__(self, net: Any, rate: float) -> None:
        super().__init__()
        self.conv1, self.steer = Linear(net.conv1), Linear(net.steer)
        self.bn = nn.ModuleList(BatchNorm(norm) for norm in net.bn)
        self.a, self.b, self.s = (
            nn.ModuleList(Linear(layer) for layer in layers) for layers in (net.a, net.b, net.s)
        )
        self.relu, self.drop, self.pool = ReLU(), Dropout(rate), MaxPool(0)

    def forward(self, x: Pair) -> Pair:
        around = (1, 2, 1, 2)
        x = self.conv1((F.pad(x[0], around), F.pad(x[1], around)))
        x = self.pool(self.drop(x))
        for k in range(len(self.a)):
            out = self.drop(self.a[k](self.relu(self.bn[2 * k](x))))
            out = self.drop(self.b[k](self.relu(self.bn[2 * k + 1](out))))
            aside = self.drop(self.s[k](x))
            x = out[0] + aside[0], out[1] + aside[1]
        mean, var = (part.permute(0, 2, 3, 1).flatten(1) for part in self.relu(x))
        return self.steer((mean, var))


def twin(net: nn.Module, rate: float) -> nn.Module:
    """The network written with twins; it shares the weights."""
    return TwinDroNet(net, rate) if isinstance(net, DroNet) else TwinResNet(net, rate)


@torch.no_grad()
def sampled(twin: nn.Module, x: Tensor, noise_var: float, samples: int) -> tuple[Tensor, ...]:
    """Mean, data variance and model variance from a loop over samples."""
    means, squares, variances = [], [], []
    for _ in range(samples):
        mean, var = twin((x, torch.full_like(x, noise_var)))
        means.append(mean)
        squares.append(mean**2)
        variances.append(var)
    mean = torch.stack(means).mean(0)
    model_var = torch.stack(squares).mean(0) - mean**2
    return mean, torch.stack(variances).mean(0), model_var
