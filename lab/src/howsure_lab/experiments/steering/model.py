"""DroNet (Loquercio et al. 2018), a ResNet-8 for one gray image; and where to get its weights."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure.data.reading import load_checkpoint
from howsure_lab.optional import imported

# Their layers are numbered in the order of creation: stem, then per block a, b and shortcut.
_CONVOLUTIONS = {
    "conv2d_1": "conv1",
    **{f"conv2d_{2 + 3 * k + j}": f"{kind}.{k}" for k in range(3) for j, kind in enumerate("abs")},
}
_NORMS = {f"batch_normalization_{k + 1}": f"bn.{k}" for k in range(6)}
_DENSE = {"dense_1": "steer", "dense_2": "coll"}
_NORM_PARTS = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_LAYER_PARTS = {"kernel": "weight", "bias": "bias"}


def read_keras(path: str | Path) -> dict[str, Tensor]:
    """The weights in a Keras .h5 file, under the names of `DroNet`."""
    h5py = imported("h5py", "Keras weights need h5py", "h5py")
    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, found: object) -> None:
        if isinstance(found, h5py.Dataset):
            layer, part = name.split("/")[-2:]
            arrays[f"{layer}/{part.split(':')[0]}"] = np.asarray(found)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return from_keras(arrays)


def from_keras(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The state dict for arrays named `layer/part`, such as `conv2d_1/kernel`.

    Keras keeps kernels as (height, width, in, out) and matrices as (in, out); torch turns both
    around. The collision output is included.
    """
    weights = {f"{ours}.num_batches_tracked": torch.tensor(0) for ours in _NORMS.values()}
    for keras, ours in {**_CONVOLUTIONS, **_NORMS, **_DENSE}.items():
        for part, name in (_NORM_PARTS if keras in _NORMS else _LAYER_PARTS).items():
            found = arrays.get(f"{keras}/{part}")
            if found is None:
                raise ValueError(
                    f"The Keras file has no `{keras}/{part}`; these are not the weights of DroNet."
                )
            turned = found.transpose(3, 2, 0, 1) if found.ndim == 4 else found.T
            weights[f"{ours}.{name}"] = torch.from_numpy(np.ascontiguousarray(turned)).float()
    return weights


FULL = (32, 32, 64, 128)
SMALL = (16, 16, 32, 64)


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
        # The last feature map after a convolution, a pool and three strides of 2.
        side = -(-(((size - 2) // 2 - 2) // 2 + 1) // 8)
        self.steer = nn.Linear(widths[-1] * side**2, 1)

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


def load_weights(path: str | Path) -> DroNet:
    """DroNet with weights from torch (.pt) or from the authors' Keras file (.h5), in eval mode."""
    path = Path(path)
    weights = read_keras(path) if path.suffix == ".h5" else load_checkpoint(path)
    return with_weights(DroNet(), weights, str(path))


def with_weights(model: DroNet, weights: dict[str, Tensor], source: str) -> DroNet:
    """The model with weights, which may include those of the collision output, in eval mode."""
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("coll.")}
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
