"""Smooth random patterns, one set per scene, that can be looked up at any position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_CELLS = 64


@dataclass(frozen=True, eq=False)
class Textures:
    """Random numbers on a grid that repeats; between its nodes they are interpolated."""

    grid: Tensor  # (n, 1, cells + 1, cells + 1), in [0, 1]

    @staticmethod
    def of(
        seeds: Tensor,  # (n,)
    ) -> Textures:
        """A pattern for each seed, whatever the other seeds are."""
        drawn = [
            torch.rand(1, _CELLS, _CELLS, generator=torch.Generator().manual_seed(int(seed)))
            for seed in seeds
        ]
        return Textures(F.pad(torch.stack(drawn), (0, 1, 0, 1), mode="circular"))

    def fine(self, x: Tensor, y: Tensor) -> Tensor:
        """Grain with cells of 0.3 x 0.6 meters."""
        return self._at(x / 0.3, y / 0.6)

    def coarse(self, x: Tensor, y: Tensor) -> Tensor:
        """Patches with cells of 3 x 4 meters, in two octaves."""
        return 0.65 * self._at(x / 3 + 17.3, y / 4 + 5.1) + 0.35 * self._at(x / 1.1, y / 1.7)

    def skyline(self, column: Tensor) -> Tensor:
        """A height for each image column."""
        return self._at(12 * column + 40.5, torch.full_like(column, 30.5))

    def _at(self, x: Tensor, y: Tensor) -> Tensor:  # (n, rows, columns)
        """The pattern at positions in cells, which broadcast to each other."""
        place = torch.stack(torch.broadcast_tensors(x % _CELLS, y % _CELLS), -1)
        place = place.expand(self.grid.shape[0], *place.shape[1:]) * 2 / _CELLS - 1
        return F.grid_sample(self.grid, place, align_corners=True).squeeze(1)
