"""The square root of a noise's covariance: a linear map S from standard normal numbers to noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Root:
    """The noise of one input as S z, with z standard normal.

    Attributes:
        shape: Shape of z for one row.
        apply: S: takes z of shape (points, rows, *shape) and the rows (a slice or indices) that it
            is for, and gives the noise, (points, rows, *input's shape).
    """

    shape: tuple[int, ...]
    apply: Callable[[Tensor, slice | Tensor], Tensor]

    def transposed(self, noise: Tensor, rows: slice | Tensor) -> Tensor:
        """S' g, by differentiating <S z, g>; (points, rows, *shape)."""
        with torch.enable_grad():
            z = torch.zeros(*noise.shape[:2], *self.shape, dtype=noise.dtype).requires_grad_()
            return torch.autograd.grad(self.apply(z, rows), z, noise)[0]


def diagonal(std: Tensor) -> Root:  # (rows, *shape)
    """Independent noise of this std for every element."""
    return Root(tuple(std.shape[1:]), lambda z, rows: std[rows] * z)
