"""Handwritten digits that come with scikit-learn, their split, and a sensor that adds noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from howsure_lab.optional import imported

SPLIT_SEED = 0
HELD_OUT = 597


class Digits(NamedTuple):
    """Images and what they show."""

    images: Tensor  # (n, 1, 8, 8), gray values in [0, 1]
    labels: Tensor  # (n,)


class Split(NamedTuple):
    """Positions in the data set; no position is in both."""

    train: Tensor  # (1200,)
    held_out: Tensor  # (597,)


def load_digits() -> Digits:
    """All 1,797 digits, read from the files of scikit-learn itself: nothing is downloaded."""
    needed = "sklearn.datasets", "The digits come with scikit-learn", "scikit-learn"
    datasets = imported(*needed)
    images, labels = datasets.load_digits(return_X_y=True)
    gray = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return Digits(gray, torch.as_tensor(labels, dtype=torch.int64))


def split(count: int) -> Split:
    """Which digits train the network and which it never sees: the same ones every time."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return Split(order[:-HELD_OUT], order[-HELD_OUT:])


def held_out_digits(count: int | None = None) -> Digits:
    """Digits that the network was not trained on, all of them or the first `count`."""
    digits = load_digits()
    chosen = split(len(digits.labels)).held_out[:count]
    return Digits(digits.images[chosen], digits.labels[chosen])


def sense(
    images: Tensor,  # (n, 1, 8, 8)
    noise_std: float,
    generator: torch.Generator,
) -> Tensor:  # (n, 1, 8, 8)
    """The images as a sensor with Gaussian noise of `noise_std` per pixel reads them."""
    return images + noise_std * torch.randn(images.shape, generator=generator)
