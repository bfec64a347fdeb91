"""Cross-fitting: the held-out inputs in folds, the same each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FEWEST = 50
FOLDS = 5
Batches = Sequence[tuple[Any, Tensor]]


def folds_of(rows: int, number: int) -> Tensor:
    """The fold of each row of a batch: neighbors go into different ones."""
    return (torch.arange(rows) + number) % FOLDS
