"""Inputs with their targets, in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Pairs(NamedTuple):
    """Inputs and targets of a part of the data."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n, ...)

    def with_noise(self, var: float, seed: int) -> Pairs:
        """The inputs as a sensor with noise of variance `var` reads them; same seed, same noise."""
        generator = torch.Generator().manual_seed(seed)
        return Pairs(self.x + var**0.5 * torch.randn(self.x.shape, generator=generator), self.y)

    def first(self, count: int) -> Pairs:
        """The first `count` pairs."""
        return Pairs(self.x[:count], self.y[:count])

    def every(self, count: int) -> Pairs:
        """About `count` pairs, evenly spread."""
        chosen = torch.linspace(0, len(self.y) - 1, min(count, len(self.y))).round().long()
        return Pairs(self.x[chosen], self.y[chosen])

    def batches(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """Batches in order."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def shuffled(self, size: int, seed: int) -> DataLoader[tuple[Tensor, ...]]:
        """A loader with another order in every epoch; same seed, same orders."""
        generator = torch.Generator().manual_seed(seed)
        data = TensorDataset(self.x, self.y)
        return DataLoader(data, size, shuffle=True, generator=generator, drop_last=len(data) > size)
