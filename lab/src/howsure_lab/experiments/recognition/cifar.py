"""CIFAR-10 from its official files (python or binary batches) or an .npz file.

The python batches are pickles, and a pickle can run code. They are read by an unpickler that knows
numpy arrays, dicts, lists, strings and numbers, and refuses anything else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_RECORD = 1 + 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
_TEST = "test_batch"
# Where numpy has kept the function that rebuilds an array, by version.
_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class Cifar(NamedTuple):
    """Images as bytes, as they come, and their classes."""

    train_x: Tensor  # (n, 3, 32, 32), uint8
    train_y: Tensor  # (n,)
    test_x: Tensor  # (m, 3, 32, 32), uint8
    test_y: Tensor  # (m,)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for arrays in plain containers; every other name is an error."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _ARRAYS:
            if name == "_reconstruct":
                return np.ndarray.__reduce__(np.empty(0))[0]
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        raise ValueError(f"The batch asks for `{module}.{name}`; CIFAR-10 has no such thing.")


def read_cifar(folder: str | Path) -> Cifar:
    """CIFAR-10 from a folder or its subfolders, in whichever format is found first."""
    folder = Path(folder)
    readers: tuple[tuple[str, Callable[[Path], Cifar]], ...] = (
        (_TEST, lambda path: _from_batches(path.parent, "", _python_batch)),
        (f"{_TEST}.bin", lambda path: _from_batches(path.parent, ".bin", _binary_batch)),
        ("*cifar*.npz", _from_npz),
    )
    for pattern, reader in readers:
        for path in sorted(folder.glob(f"**/{pattern}")):
            return reader(path)
    raise FileNotFoundError(
        f"There is no CIFAR-10 in `{folder}`: looked for `{_TEST}`, `{_TEST}.bin` and an .npz "
        'file with "cifar" in its name.'
    )


def _from_batches(
    folder: Path, suffix: str, read: Callable[[Path], tuple[np.ndarray, np.ndarray]]
) -> Cifar:
    paths = [folder / f"{name}{suffix}" for name in _TRAIN]
    parts = [read(path) for path in paths if path.exists()]
    test_x, test_y = read(folder / f"{_TEST}{suffix}")
    train_x = np.concatenate([x for x, _ in parts]) if parts else test_x[:0]
    train_y = np.concatenate([y for _, y in parts]) if parts else test_y[:0]
    return _checked(train_x, train_y, test_x, test_y)


def _python_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        x, y = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"`{path}` is not a python batch of CIFAR-10: {error}") from None
    return x.reshape(-1, 3, 32, 32), y


def _binary_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % _RECORD:
        raise ValueError(
            f"`{path}` has {content.size} bytes; a binary batch has a multiple of {_RECORD}."
        )
    records = content.reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _from_npz(path: Path) -> Cifar:
    """Arrays x_train, y_train, x_test and y_test; images (n, 32, 32, 3) or (n, 3, 32, 32)."""
    with np.load(path, allow_pickle=False) as file:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(file.files)
        if missing:
            raise ValueError(f"`{path}` has no {sorted(missing)}.")
        arrays = [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    for i in (0, 2):
        if arrays[i].shape[-1] == 3:
            arrays[i] = arrays[i].transpose(0, 3, 1, 2)
    return _checked(*arrays)


def _checked(*arrays: np.ndarray) -> Cifar:
    tensors = []
    for images, labels in ((arrays[0], arrays[1]), (arrays[2], arrays[3])):
        if images.shape[1:] != (3, 32, 32) or images.dtype != np.uint8:
            raise ValueError(f"Images must be 32 x 32 bytes in color, not {images.shape}.")
        flat = labels.reshape(-1).astype(np.int64)
        if len(flat) != len(images) or (len(flat) and not 0 <= flat.min() <= flat.max() <= 9):
            raise ValueError("There must be one label from 0 to 9 for every image.")
        tensors += [torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(flat)]
    return Cifar(*tensors)
