"""The novelty of held-out inputs as quantiles, which new inputs are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Quantiles that are kept, in equal steps from the smallest to the largest.
QUANTILES = 101
# Levels that are told.
TOLD = (0.5, 0.75, 0.9, 0.95, 0.99)


def quantiles_of(novelty: Tensor) -> Tensor:  # (inputs, ...) -> (`QUANTILES`, ...)
    """The quantiles of held-out inputs."""
    return novelty.quantile(
        torch.linspace(0, 1, QUANTILES, dtype=novelty.dtype, device=novelty.device), 0
    )


def quantile_at(quantiles: Tensor, level: float) -> float:
    """The novelty that a share of the held-out inputs does not exceed."""
    place = level * (len(quantiles) - 1)
    low, high = quantiles[[math.floor(place), math.ceil(place)]].tolist()
    return low + (place - math.floor(place)) * (high - low)


def share_below(quantiles: Tensor, novelty: Tensor) -> Tensor:
    """The share of the held-out inputs that are less novel, in steps of the quantiles."""
    quantiles = quantiles.to(novelty.device)
    novelty = novelty.to(quantiles.dtype).contiguous()
    low, high = (torch.searchsorted(quantiles, novelty, right=right) for right in (False, True))
    return (low + high) / (2 * len(quantiles))
