"""What counts as new: scores of inputs by their place among those of the held-out inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The quantile of the held-out inputs from which uncertainty grows, and that is a novelty of 1.
KNOWN = 0.75
# Quantiles of the held-out novelty that are kept, in equal steps from the smallest to the largest.
QUANTILES = 101
# Quantile levels that a fit reports.
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


def quantiles_of(novelty: Tensor) -> Tensor:  # (inputs, ...) -> (`QUANTILES`, ...)
    """The quantiles of the novelty of held-out inputs, which new inputs are compared with."""
    levels = torch.linspace(0, 1, QUANTILES, dtype=novelty.dtype, device=novelty.device)
    return novelty.quantile(levels, 0)


def quantile_at(quantiles: Tensor, level: float) -> float:
    """The novelty that this share of the held-out inputs does not exceed."""
    position = level * (len(quantiles) - 1)
    low, high = quantiles[[math.floor(position), math.ceil(position)]].tolist()
    return low + (position - math.floor(position)) * (high - low)


def share_below(quantiles: Tensor, novelty: Tensor) -> Tensor:
    """The share of the held-out inputs that are less novel, in steps of the quantiles."""
    quantiles = quantiles.to(novelty.device)
    novelty = novelty.to(quantiles.dtype).contiguous()
    low, high = (torch.searchsorted(quantiles, novelty, right=right) for right in (False, True))
    return (low + high) / (2 * len(quantiles))
