"""Reproducible signs: the same for a seed, whatever the batch, inside `vmap` and exports.

Elements are coloured, and every colour has its own column of a Hadamard matrix, times one random
sign per element. Elements of different colours do not disturb each other at all; those of the same
colour lie apart (probing, Tang & Saad 2012). With independent random signs all pairs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def random_signs(count: int, shape: Sequence[int], seed: tuple[int, ...], like: Tensor) -> Tensor:
    """`count` tensors of signs, in front, in the dtype and on the device of `like`.

    Drawn by numpy: to torch they are constants, which `vmap` leaves alone and an export keeps.
    """
    small = count * math.prod(shape) <= _KEPT
    signs = (_kept if small else _drawn)(count, tuple(shape), seed)
    return torch.from_numpy(signs).to(dtype=like.dtype, device=like.device)


def _drawn(count: int, shape: tuple[int, ...], seed: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if not are_coloured(count):
        return 2 * generator.integers(0, 2, size=(count, *shape), dtype=np.int8) - 1
    signs = np.empty((count, *shape), dtype=np.int8)
    signs[0] = 2 * generator.integers(0, 2, size=shape, dtype=np.int8) - 1
    # Different draws start with different colours.
    colours = _colours(count, shape) + np.uint16(generator.integers(count))
    # Sylvester's matrix: row `bit + k` is row k, turned where the colour contains the bit.
    for bit in (2**power for power in range(count.bit_length() - 1)):
        turned = 1 - 2 * ((colours & bit) != 0).astype(np.int8)
        np.multiply(signs[:bit], turned, out=signs[bit : 2 * bit])
    return signs


# Small networks spend more time on drawing than on computing, so theirs are kept.
_KEPT = 2**14
_kept = lru_cache(maxsize=1024)(_drawn)


def are_coloured(count: int) -> bool:
    """Whether there is a Hadamard matrix of this size: powers of two."""
    return count & (count - 1) == 0


@lru_cache(maxsize=256)
def _colours(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """A lattice: in images the next element of the same colour is about sqrt(count) away."""
    steps = (1, round(count**0.5), 2 if count >= 8 else 1, 5, 7)
    colours = np.zeros(shape, dtype=np.uint16)  # which wraps around at a multiple of `count`
    for axis in range(len(shape)):
        step = steps[min(axis, len(steps) - 1)]
        index = np.arange(shape[len(shape) - 1 - axis]).reshape(-1, *[1] * axis)
        colours = colours + (step * index).astype(np.uint16)
    return colours


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
