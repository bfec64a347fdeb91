"""Splits of a sequence whose neighbors resemble each other: by blocks, with a gap in between."""

from __future__ import annotations

import torch
from torch import Tensor


def alternate_blocks(count: int, *, block: int, gap: int) -> tuple[Tensor, Tensor]:
    """Positions of two parts that take turns: blocks of `block`, `gap` unused between them.

    Consecutive positions are never in different parts, as long as the gap is at least 1: the
    nearest two positions of different parts are `gap + 1` apart.
    """
    if block < 1 or gap < 1:
        raise ValueError(f"`block` and `gap` must be at least 1, not {block} and {gap}.")
    if count < 2 * block + gap:
        raise ValueError(
            f"{count} positions are too few for two blocks of {block} with {gap} between them."
        )
    position = torch.arange(count)
    turn, place = position // (block + gap), position % (block + gap)
    used = place < block
    return position[used & (turn % 2 == 0)], position[used & (turn % 2 == 1)]
