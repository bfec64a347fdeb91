"""The authors' Keras weights of DroNet as a torch state dict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("Keras weights need h5py: `pip install h5py`.") from None
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
    weights: dict[str, Tensor] = {}
    names = {**_CONVOLUTIONS, **_NORMS, **_DENSE}
    for keras, ours in names.items():
        for part, name in (_NORM_PARTS if keras in _NORMS else _LAYER_PARTS).items():
            found = arrays.get(f"{keras}/{part}")
            if found is None:
                raise ValueError(
                    f"The Keras file has no `{keras}/{part}`; these are not the weights of DroNet."
                )
            axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[found.ndim]
            turned = np.ascontiguousarray(np.transpose(found, axes))
            weights[f"{ours}.{name}"] = torch.from_numpy(turned).float()
    batches = {f"{ours}.num_batches_tracked": torch.tensor(0) for ours in _NORMS.values()}
    return {**weights, **batches}
