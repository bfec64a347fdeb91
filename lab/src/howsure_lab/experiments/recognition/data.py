"""The recognition task's data: scikit-learn's digits, or CIFAR-10; and images of nothing.

The python batches are pickles, and a pickle can run code. They are read by an unpickler that knows
numpy arrays, dicts, lists, strings and numbers, and refuses anything else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from howsure_lab.digits.data import load_digits
from howsure_lab.experiments.recognition.resnets import MEAN, STD
from howsure_lab.experiments.training import Pairs

_RECORD = 1 + 3 * 32 * 32
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
    readers: dict[str, Callable[[Path], Cifar]] = {
        _TEST: lambda path: _from_batches(path.parent, "", _python_batch),
        f"{_TEST}.bin": lambda path: _from_batches(path.parent, ".bin", _binary_batch),
        "*cifar*.npz": _from_npz,
    }
    for pattern, reader in readers.items():
        for path in sorted(folder.glob(f"**/{pattern}")):
            return reader(path)
    raise FileNotFoundError(
        f"There is no CIFAR-10 in `{folder}`: looked for `{_TEST}`, `{_TEST}.bin` and an .npz "
        'file with "cifar" in its name.'
    )


def _from_batches(
    folder: Path, suffix: str, read: Callable[[Path], tuple[np.ndarray, np.ndarray]]
) -> Cifar:
    test_x, test_y = read(folder / f"{_TEST}{suffix}")
    paths = [folder / f"data_batch_{k}{suffix}" for k in range(1, 6)]
    parts = [(test_x[:0], test_y[:0]), *(read(path) for path in paths if path.exists())]
    train_x, train_y = (np.concatenate(column) for column in zip(*parts, strict=True))
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
    names = ("x_train", "y_train", "x_test", "y_test")
    with np.load(path, allow_pickle=False) as file:
        if missing := sorted(set(names) - set(file.files)):
            raise ValueError(f"`{path}` has no {missing}.")
        return _checked(*(file[name] for name in names))


def _checked(*arrays: np.ndarray) -> Cifar:
    tensors = []
    for images, labels in (arrays[:2], arrays[2:]):
        if images.shape[-1] == 3:
            images = images.transpose(0, 3, 1, 2)
        if images.shape[1:] != (3, 32, 32) or images.dtype != np.uint8:
            raise ValueError(f"Images must be 32 x 32 bytes in color, not {images.shape}.")
        flat = labels.reshape(-1).astype(np.int64)
        if len(flat) != len(images) or (len(flat) and not 0 <= flat.min() <= flat.max() <= 9):
            raise ValueError("There must be one label from 0 to 9 for every image.")
        tensors += [torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(flat)]
    return Cifar(*tensors)


_SPLIT_SEED = 0


@dataclass(frozen=True)
class Counts:
    """How many images tune and how many test; of digits the others train."""

    validation: int
    test: int


@dataclass(frozen=True, eq=False)
class RecognitionData:
    """Images and labels; `strange` has images of no class, by kind."""

    train: Pairs
    validation: Pairs
    test: Pairs
    strange: Mapping[str, Tensor]


def digit_data(counts: Counts, noise_std: float) -> RecognitionData:
    """The digits of scikit-learn, read by a sensor with noise; disjoint parts."""
    images, labels = load_digits()
    parts = split_three(len(labels), counts, _SPLIT_SEED)
    noisy = [
        Pairs(images[part], labels[part]).with_noise(noise_std**2, seed)
        for seed, part in enumerate(parts)
    ]
    return RecognitionData(*noisy, strange=strange_images(noisy[2].x, patch=2))


def split_three(count: int, counts: Counts, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions for training, tuning and testing; no position is in two of them."""
    if count <= counts.validation + counts.test:
        raise ValueError(f"{count} images are too few for {counts}.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    sizes = [count - counts.validation - counts.test, counts.validation, counts.test]
    train, validation, test = order.split(sizes)
    return train, validation, test


def cifar_data(cifar: Cifar, counts: Counts) -> RecognitionData:
    """CIFAR-10 for a network that was trained on its training images.

    Tuning needs images that the network has not seen, so they come from the test set; the others
    test.
    """
    _, validation, test = split_three(len(cifar.test_y), counts, _SPLIT_SEED)
    train = Pairs(normalized(cifar.train_x[:5000]), cifar.train_y[:5000])
    held_out, tested = (
        Pairs(normalized(cifar.test_x[part]), cifar.test_y[part]) for part in (validation, test)
    )
    return RecognitionData(train, held_out, tested, strange_images(tested.x, patch=8))


def normalized(
    images: Tensor,  # (n, 3, 32, 32), uint8
) -> Tensor:
    """The images, normalized as the networks were trained on them."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def strange_images(x: Tensor, *, patch: int) -> dict[str, Tensor]:
    """Images of nothing that have the test images' gray values.

    "shuffled": the same patches in another order. "negative": bright and dark exchanged.
    """
    n, c, h, w = x.shape
    generator = torch.Generator().manual_seed(1)
    cells = x.reshape(n, c, h // patch, patch, w // patch, patch).permute(0, 2, 4, 1, 3, 5)
    cells = cells.reshape(n, -1, c, patch, patch)
    moved = torch.stack([image[torch.randperm(len(image), generator=generator)] for image in cells])
    moved = moved.reshape(n, h // patch, w // patch, c, patch, patch).permute(0, 3, 1, 4, 2, 5)
    low, high = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
    return {"shuffled": moved.reshape(x.shape), "negative": low + high - x}
