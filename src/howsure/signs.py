"""Reproducible random signs: the same for a seed, whatever the batch, inside `vmap` and exports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def random_signs(count: int, shape: Sequence[int], seed: tuple[int, ...], like: Tensor) -> Tensor:
    """`count` tensors of independent signs, in front, in the dtype and on the device of `like`.

    Drawn by numpy: to torch they are constants, which `vmap` leaves alone and an export keeps.
    """
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 2, size=(count, *shape), dtype=np.int8)
    return torch.from_numpy(2 * bits - 1).to(dtype=like.dtype, device=like.device)


def batch_axis(shape: Sequence[int], batch: int | None) -> int | None:
    """The axis that counts the inputs of a batch: the first one of that length.

    For a batch of 1 any axis will do, since there is nothing to tell apart.
    """
    found = (axis for axis, size in enumerate(shape) if size == batch)
    return next(found, 0 if batch == 1 and shape else None)


def without_batch(shape: Sequence[int], batch: int | None) -> tuple[int, ...]:
    """The shape with 1 in place of the batch: what all inputs of a batch can share."""
    chosen = None if batch == 1 else batch_axis(shape, batch)
    return tuple(1 if axis == chosen else size for axis, size in enumerate(shape))
