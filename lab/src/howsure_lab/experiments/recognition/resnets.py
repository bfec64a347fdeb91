"""ResNet-18, 34, 50, 101 and 152 for 32 x 32 images, as in the paper's released code.

Layers are named as there (and in kuangliu/pytorch-cifar): `layer1.0.conv1`, `shortcut.0`,
`linear`. The stem is one 3 x 3 convolution without a pool.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from howsure.data.reading import load_checkpoint

_WIDTHS = (64, 128, 256, 512)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features of `width` channels."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


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
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features of 4 `width` channels."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


_STAGES: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
DEPTHS = tuple(_STAGES)


class ResNet(nn.Module):
    """Logits of the classes from 32 x 32 images in color."""

    def __init__(self, depth: int = 18, *, classes: int = 10) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise ValueError(f"The depth must be one of {DEPTHS}, not {depth}.")
        block, counts = _STAGES[depth]
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for k, (width, count) in enumerate(zip(_WIDTHS, counts, strict=True)):
            stage = []
            for i in range(count):
                stage.append(block(inputs, width, 2 if k > 0 and i == 0 else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{k + 1}", nn.Sequential(*stage))
        self.linear = nn.Linear(inputs, classes)

    def forward(
        self,
        x: Tensor,  # (batch, 3, 32, 32)
    ) -> Tensor:  # (batch, classes)
        """One logit per class."""
        out = F.relu(self.bn1(self.conv1(x)))
        for k in range(len(_WIDTHS)):
            out = self.get_submodule(f"layer{k + 1}")(out)
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


def load_pretrained(path: str | Path, depth: int) -> ResNet:
    """A trained ResNet from a checkpoint of the released code, in eval mode."""
    model = ResNet(depth)
    try:
        model.load_state_dict(load_checkpoint(path))
    except RuntimeError as error:
        raise ValueError(f"`{path}` does not hold a ResNet-{depth}: {error}") from None
    return model.eval().requires_grad_(False)
