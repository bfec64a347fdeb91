"""The recognition task's data: scikit-learn's digits, or CIFAR-10; and images of nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.recognition.cifar import Cifar
from howsure_lab.experiments.recognition.cifar_resnets import MEAN, STD

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
    try:
        from sklearn import datasets
    except ImportError:
        raise ImportError(
            "The digits come with scikit-learn: `pip install scikit-learn`."
        ) from None
    x, y = datasets.load_digits(return_X_y=True)
    images = torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(y, dtype=torch.int64)
    parts = split_three(len(labels), counts, _SPLIT_SEED)
    clean = [Pairs(images[part], labels[part]) for part in parts]
    noisy = [pairs.with_noise(noise_std**2, seed) for seed, pairs in enumerate(clean)]
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
    held_out = Pairs(normalized(cifar.test_x[validation]), cifar.test_y[validation])
    tested = Pairs(normalized(cifar.test_x[test]), cifar.test_y[test])
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
