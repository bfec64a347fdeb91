"""ResNets for 32 x 32 images: ResNet-20 to 56 of He et al. 2015, ResNet-18 to 152 of the paper.

Layers are named as in the public weights: of akamaster/pytorch_resnet_cifar10, whose shortcuts drop
pixels and pad channels with 0 (option A), and of the paper's released code (and
kuangliu/pytorch-cifar), whose stem is one 3 x 3 convolution without a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def projected(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A convolution with batch norm, where the shapes differ."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        shortcut: Callable[[int, int, int], nn.Module] = projected,
        dropout: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width, stride)
        self.drop1, self.drop2 = dropout(), dropout()

    def forward(self, x: Tensor) -> Tensor:
        """Features of `width` channels."""
        out = self.drop1(F.relu(self.bn1(self.conv1(x))))
        return self.drop2(F.relu(self.bn2(self.conv2(out)) + self.shortcut(x)))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two of 1 x 1, the last of which widens."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = projected(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features of 4 `width` channels."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class Stages(nn.Module):
    """A 3 x 3 convolution, stages of blocks of which all but the first halve the image, a head."""

    def __init__(
        self,
        channels: int,
        first: int,
        stages: Sequence[tuple[int, int]],  # width and number of blocks of each
        block: Callable[[int, int, int], nn.Module],
        expansion: int,
        classes: int,
        dropout: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, first, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.drop = dropout()
        self.stages = len(stages)
        inputs = first
        for k, (width, count) in enumerate(stages):
            blocks = []
            for i in range(count):
                blocks.append(block(inputs, width, 2 if k > 0 and i == 0 else 1))
                inputs = width * expansion
            self.add_module(f"layer{k + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(inputs, classes)

    def forward(
        self,
        x: Tensor,  # (batch, channels, 32, 32)
    ) -> Tensor:  # (batch, classes)
        """One logit per class."""
        out = self.drop(F.relu(self.bn1(self.conv1(x))))
        for k in range(self.stages):
            out = self.get_submodule(f"layer{k + 1}")(out)
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


class CifarResNet(Stages):
    """ResNet-(6 n + 2), with n blocks in each of three stages.

    `dropout` makes a module behind every activation: 6 n + 1 sites.
    """

    def __init__(
        self,
        depth: int = 20,
        *,
        channels: int = 3,
        widths: tuple[int, ...] = (16, 32, 64),
        dropout: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"The depth must be 6 n + 2, such as 20 or 32, not {depth}.")

        def block(inputs: int, width: int, stride: int) -> nn.Module:
            return BasicBlock(inputs, width, stride, Padded, dropout)

        stages = [(width, (depth - 2) // 6) for width in widths]
        super().__init__(channels, widths[0], stages, block, 1, 10, dropout)


_STAGES: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(Stages):
    """ResNet-18, 34, 50, 101 or 152."""

    def __init__(self, depth: int = 18, *, classes: int = 10) -> None:
        if depth not in _STAGES:
            raise ValueError(f"The depth must be one of {tuple(_STAGES)}, not {depth}.")
        block, counts = _STAGES[depth]
        stages = list(zip((64, 128, 256, 512), counts, strict=True))
        super().__init__(3, 64, stages, block, block.expansion, classes)


def load_pretrained(
    path: str | Path, depth: int, dropout: Callable[[], nn.Module] = nn.Identity
) -> Stages:
    """A trained ResNet from a checkpoint, in eval mode; a prefix `module.` is stripped.

    Dropout is for `CifarResNet` alone.
    """
    model = ResNet(depth) if depth in _STAGES else CifarResNet(depth, dropout=dropout)
    try:
        model.load_state_dict(load_checkpoint(path))
    except RuntimeError as error:
        raise ValueError(f"`{path}` does not hold a ResNet-{depth}: {error}") from None
    return model.eval().requires_grad_(False)
