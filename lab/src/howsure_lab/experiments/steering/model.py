"""DroNet (Loquercio et al. 2018), a ResNet-8 for one gray image; and where to get its weights."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure.data.reading import load_checkpoint

FULL = (32, 32, 64, 128)
SMALL = (16, 16, 32, 64)
_COLLISION = ("coll.weight", "coll.bias")


class DroNet(nn.Module):
    """Steering angles from gray images; layers are named as in the authors' torch weights.

    `a`, `b` and `s` are the first convolution, the second and the shortcut of each block. The
    authors' second output, the probability of a collision, is left out.
    """

    def __init__(self, size: int = 200, widths: tuple[int, ...] = FULL) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        norms = [width for pair in pairs for width in pair]
        self.size = size
        self.conv1 = nn.Conv2d(1, widths[0], 5, stride=2)
        self.bn = nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for width in norms)
        self.a = nn.ModuleList(nn.Conv2d(n, m, 3, stride=2, padding=1) for n, m in pairs)
        self.b = nn.ModuleList(nn.Conv2d(m, m, 3, padding=1) for _, m in pairs)
        self.s = nn.ModuleList(nn.Conv2d(n, m, 1, stride=2) for n, m in pairs)
        self.steer = nn.Linear(widths[-1] * _side(size) ** 2, 1)

    def forward(
        self,
        x: Tensor,  # (batch, 1, size, size), gray values in [0, 1]
    ) -> Tensor:  # (batch, 1)
        """One steering angle per image."""
        x = F.max_pool2d(self.conv1(F.pad(x, (1, 2, 1, 2))), 3, 2)
        for k in range(len(self.a)):
            out = self.a[k](F.relu(self.bn[2 * k](x)))
            out = self.b[k](F.relu(self.bn[2 * k + 1](out)))
            x = out + self.s[k](x)
        # Keras flattens with the channels last.
        return self.steer(F.relu(x.permute(0, 2, 3, 1).flatten(1)))


def _side(size: int) -> int:
    """Width of the last feature map: a convolution, a pool and three strides of 2."""
    side = ((size + 3 - 5) // 2 + 1 - 3) // 2 + 1
    for _ in range(3):
        side = (side + 1) // 2
    return side


def load_weights(path: str | Path) -> DroNet:
    """DroNet with weights from torch (.pt) or from the authors' Keras file (.h5), in eval mode."""
    path = Path(path)
    if path.suffix == ".h5":
        from howsure_lab.experiments.steering.keras_weights import read_keras

        weights = read_keras(path)
    else:
        weights = load_checkpoint(path)
    return with_weights(DroNet(), weights, str(path))


def with_weights(model: DroNet, weights: dict[str, Tensor], source: str) -> DroNet:
    """The model with weights, which may include those of the collision output, in eval mode."""
    kept = {name: tensor for name, tensor in weights.items() if name not in _COLLISION}
    try:
        model.load_state_dict(kept)
    except RuntimeError as error:
        raise ValueError(f"`{source}` does not hold the weights of DroNet: {error}") from None
    return model.eval().requires_grad_(False)


def load_trained() -> DroNet:
    """A small DroNet for 64 x 64 images, trained on rendered roads; it ships with the package."""
    shipped = resources.files("howsure_lab.experiments.steering") / "trained.pt"
    with shipped.open("rb") as file:
        weights = torch.load(file, weights_only=True)
    return with_weights(DroNet(64, SMALL), weights, "trained.pt")
