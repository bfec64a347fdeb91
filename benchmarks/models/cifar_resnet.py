"""The CIFAR ResNets of He et al. 2015 with option A shortcuts, for akamaster's weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def dropout(units: str | None) -> nn.Module:
    """Element-wise or channel-wise dropout, or none."""
    kinds = {None: nn.Identity, "element": nn.Dropout, "channel": nn.Dropout2d}
    return kinds[units]() if units is None else kinds[units](0.5)


class Block(nn.Module):
    """Two convolutions beside a shortcut that drops pixels and pads channels with 0."""

    def __init__(self, planes_in: int, planes: int, stride: int, units: str | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.drop1, self.drop2 = dropout(units), dropout(units)
        self.added = planes - planes_in

    def forward(self, x: Tensor) -> Tensor:
        out = self.drop1(F.relu(self.bn1(self.conv1(x))))
        out = self.bn2(self.conv2(out))
        if self.added:
            half = self.added // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))
        return self.drop2(F.relu(out + x))


class CifarResNet(nn.Module):
    """ResNet-(6 n + 2); `units` puts dropout after every activation: 6 n + 1 sites."""

    def __init__(self, blocks: int, units: str | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.drop = dropout(units)
        self.layer1 = self._stage(16, 16, blocks, 1, units)
        self.layer2 = self._stage(16, 32, blocks, 2, units)
        self.layer3 = self._stage(32, 64, blocks, 2, units)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _stage(
        planes_in: int, planes: int, blocks: int, stride: int, units: str | None
    ) -> nn.Sequential:
        first = Block(planes_in, planes, stride, units)
        return nn.Sequential(first, *(Block(planes, planes, 1, units) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        out = self.drop(F.relu(self.bn1(self.conv1(x))))
        out = self.layer3(self.layer2(self.layer1(out)))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


def load(folder: Path, depth: int, units: str | None = None) -> CifarResNet:
    """The trained ResNet-20 or ResNet-32 from `folder`, in eval mode."""
    file = next(folder.glob(f"resnet{depth}-*.th"))
    state = torch.load(file, weights_only=True, map_location="cpu")["state_dict"]
    model = CifarResNet((depth - 2) // 6, units)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return model.eval().requires_grad_(False)
