"""How far a predicted std is from Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accuracy_measures import rank_correlation
from torch import Tensor, nn

import howsure as hs
from speed.peer_calls import Std

DRAWS, SEEDS = 2000, 4
Scores = dict[str, float]


@dataclass(frozen=True)
class Compared:
    """A network with inputs, ways to predict a std of it, and what a way is worth.

    Attributes:
        ways: Makes each; raises `CannotRun` or `ImportError` with the reason.
        scores: Of a way and of what it made.
    """

    model: nn.Module
    x: Tensor
    ways: dict[str, Callable[[], Std]]
    scores: Callable[[str, Std], Scores]


class Ours:
    """The std that howsure predicts."""

    def __init__(self, sure: hs.Uncertain) -> None:
        self.sure = sure

    def __call__(self, x: Tensor) -> Tensor:
        return self.sure(x).std

    def seed(self, seed: int) -> None:
        """Draws other points or samples from now on."""
        self.sure.setup = self.sure.setup.replace(seed=seed)


def compared(
    model: nn.Module, x: Tensor, ways: dict[str, Callable[[], Std]], truth: Tensor
) -> Compared:
    """All ways against one truth, each with some seeds."""

    def scores(_: str, std: Std) -> Scores:
        return average([against(row_by_row(std, x, seed), truth) for seed in range(SEEDS)])

    return Compared(model, x, ways, scores)


def row_by_row(std: Std, x: Tensor, seed: int = 0) -> Tensor:
    """What is said of the inputs one at a time, as it is timed."""
    torch.manual_seed(seed)
    if isinstance(std, Ours):
        std.seed(seed)
    return torch.cat([std(row[None]) for row in x])


def against(std: Tensor, truth: Tensor) -> Scores:
    """Root mean square error of the log std, less that of Monte Carlo itself, and the rank.

    `factor` is the geometric mean of the std over the true one.
    """
    gap = (std / truth).log()
    own = 1 / (2 * (DRAWS - 1))
    return {
        "error": math.sqrt(max(0.0, float(gap.square().mean()) - own)),
        "factor": float(gap.mean().exp()),
        "rank": rank_correlation(std.flatten(), truth.flatten()),
    }


def average(runs: list[Scores]) -> Scores:
    """Root mean square errors, and means of the rest."""
    found = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    found["error"] = math.sqrt(sum(run["error"] ** 2 for run in runs) / len(runs))
    return found
