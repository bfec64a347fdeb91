"""ResNet-20 to 56 of He et al. 2015 for 32 x 32 images.

Layers are named as in the public weights of akamaster/pytorch_resnet_cifar10, whose shortcuts drop
pixels and pad channels with 0 (option A).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from howsure.data.reading import load_checkpoint

# By which the public weights want their images normalized.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Padded(nn.Module):
    """Option A: every second pixel, and channels of 0 around."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = (outputs - inputs) // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        """The input as the block's output has it."""
        pixels = x[:, :, :: self.stride, :: self.stride]
        return F.pad(pixels, (0, 0, 0, 0, self.added, self.added)) if self.added else pixels


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(
        self, inputs: int, width: int, stride: int, dropout: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = Padded(inputs, width, stride)
        self.drop1, self.drop2 = dropout(), dropout()

    def forward(self, x: Tensor) -> Tensor:
        """Features of `width` channels."""
        out = self.drop1(F.relu(self.bn1(self.conv1(x))))
        return self.drop2(F.relu(self.bn2(self.conv2(out)) + self.shortcut(x)))


class CifarResNet(nn.Module):
    """ResNet-(6 n + 2): a 3 x 3 convolution, then n blocks in each of three stages.

    All stages but the first halve the image. `dropout` makes a module behind every activation:
    6 n + 1 sites.
    """

    def __init__(
        self,
        depth: int = 20,
        *,
        channels: int = 3,
        widths: tuple[int, int, int] = (16, 32, 64),
        dropout: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"The depth must be 6 n + 2, such as 20 or 32, not {depth}.")

        def stage(inputs: int, width: int, stride: int) -> nn.Sequential:
            first = BasicBlock(inputs, width, stride, dropout)
            rest = [BasicBlock(width, width, 1, dropout) for _ in range((depth - 2) // 6 - 1)]
            return nn.Sequential(first, *rest)

        super().__init__()
        one, two, three = widths
        self.conv1 = nn.Conv2d(channels, one, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(one)
        self.drop = dropout()
        self.layer1, self.layer2 = stage(one, one, 1), stage(one, two, 2)
        self.layer3 = stage(two, three, 2)
        self.linear = nn.Linear(three, 10)

    def forward(
        self,
        x: Tensor,  # (batch, channels, 32, 32)
    ) -> Tensor:  # (batch, classes)
        """One logit per class."""
        out = self.drop(F.relu(self.bn1(self.conv1(x))))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


def load_pretrained(
    path: str | Path, depth: int, dropout: Callable[[], nn.Module] = nn.Identity
) -> CifarResNet:
    """A trained ResNet from a checkpoint, in eval mode; a prefix `module.` is stripped."""
    model = CifarResNet(depth, dropout=dropout)
    try:
        model.load_state_dict(load_checkpoint(path))
    except RuntimeError as error:
        raise ValueError(f"`{path}` does not hold a ResNet-{depth}: {error}") from None
    return model.eval().requires_grad_(False)
