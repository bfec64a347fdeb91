"""The ResNets of He et al. 2015 for small images: ResNet-20, 32, 44, 56.

Layers are named as in the public weights of akamaster/pytorch_resnet_cifar10: option A shortcuts,
which drop pixels and pad channels with 0.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from howsure.data.reading import load_checkpoint

# By which those weights want their images normalized.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
DEPTHS = (20, 32, 44, 56)


class Block(nn.Module):
    """Two convolutions beside a shortcut without weights."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Features of `outputs` channels."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.added:
            half = self.added // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """Logits of ten classes; depth 6 n + 2 with n blocks in each of three stages."""

    def __init__(
        self, depth: int = 20, *, channels: int = 3, widths: tuple[int, ...] = (16, 32, 64)
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"The depth must be 6 n + 2, such as 20 or 32, not {depth}.")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        pairs = list(itertools.pairwise((widths[0], *widths)))
        strides = (1, *(2 for _ in widths[1:]))
        for k, ((inputs, outputs), stride) in enumerate(zip(pairs, strides, strict=True)):
            others = (Block(outputs, outputs, 1) for _ in range(blocks - 1))
            stage = nn.Sequential(Block(inputs, outputs, stride), *others)
            self.add_module(f"layer{k + 1}", stage)
        self.linear = nn.Linear(widths[-1], 10)

    def forward(
        self,
        x: Tensor,  # (batch, channels, height, width)
    ) -> Tensor:  # (batch, 10)
        """One logit per class."""
        out = F.relu(self.bn1(self.conv1(x)))
        for k in range(3):
            out = self.get_submodule(f"layer{k + 1}")(out)
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


def load_pretrained(path: str | Path, depth: int) -> CifarResNet:
    """A trained ResNet from a checkpoint; a prefix `module.` is stripped. In eval mode."""
    model = CifarResNet(depth)
    try:
        model.load_state_dict(load_checkpoint(path))
    except RuntimeError as error:
        raise ValueError(f"`{path}` does not hold a ResNet-{depth}: {error}") from None
    return model.eval().requires_grad_(False)
