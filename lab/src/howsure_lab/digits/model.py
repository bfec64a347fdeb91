"""The network that reads digits, written as anyone would: it knows nothing of howsure."""

from __future__ import annotations

from importlib import resources

from torch import Tensor, nn
from torch.nn import functional as F

from howsure_lab.optional import imported

CHECKPOINT = "digits.safetensors"


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, added to their own input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(
        self,
        x: Tensor,  # (batch, channels, height, width)
    ) -> Tensor:
        """Features of the same shape."""
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return F.relu(out)


class DigitNet(nn.Module):
    """Logits of the ten digits from 8 x 8 images: 7,282 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.block1 = ResidualBlock(8)
        self.widen = nn.Conv2d(8, 16, 3, padding=1)
        self.block2 = ResidualBlock(16)
        self.classify = nn.Linear(16, 10)

    def forward(
        self,
        x: Tensor,  # (batch, 1, 8, 8), gray values in [0, 1]
    ) -> Tensor:  # (batch, 10)
        """One logit per digit."""
        x = F.relu(self.norm(self.stem(x)))
        x = F.max_pool2d(self.block1(x), 2)
        x = self.block2(F.relu(self.widen(x)))
        return self.classify(x.mean(dim=(2, 3)))


def load_trained() -> DigitNet:
    """The network with the weights that ship in the package, in eval mode.

    The weights are safetensors: numbers only, loading them runs no code.
    """
    safetensors = imported("safetensors.torch", "The weights need safetensors", "safetensors")
    model = DigitNet()
    file = resources.files("howsure_lab.digits") / CHECKPOINT
    model.load_state_dict(safetensors.load(file.read_bytes()))
    return model.eval()
