"""Cross-fitting: no held-out input is compared with itself.

Where the known inputs are the held-out ones, these are divided into folds, the same each time, and
those of a fold are scored by what the others give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

FEWEST = 50
FOLDS = 5
Batches = Sequence[tuple[Any, Tensor]]
Part = TypeVar("Part")
Result = TypeVar("Result")


def folds_of(rows: int, number: int) -> Tensor:
    """The fold of each row of a batch: neighbors go into different ones."""
    return (torch.arange(rows) + number) % FOLDS


@dataclass(frozen=True, eq=False)
class CrossFit(Generic[Result]):
    """What known inputs give, for new inputs and for held-out ones that are among them.

    Attributes:
        whole: From all known inputs.
        folds: Without those of each fold; `None` if no held-out input is among them.
    """

    whole: Result
    folds: tuple[Result, ...] | None = None

    @classmethod
    def of(cls, parts: Sequence[Part], fit: Callable[[Sequence[Part]], Result]) -> CrossFit[Result]:
        """From the parts of all folds, or from a single part without held-out inputs."""
        if len(parts) == 1:
            return cls(fit(parts))
        others = [[*parts[:k], *parts[k + 1 :]] for k in range(len(parts))]
        return cls(fit(parts), tuple(fit(rest) for rest in others))

    def score(
        self, rows: int, number: int, score: Callable[[Result, Tensor | slice], Tensor]
    ) -> Tensor:
        """The scores of a held-out batch, each row by known inputs of which it is none.

        `score` takes what known inputs give, and which rows to score by it.
        """
        if self.folds is None:
            return score(self.whole, slice(None))
        fold = folds_of(rows, number)
        chosen = [(fold == k).nonzero()[:, 0] for k in range(len(self.folds))]
        pairs = zip(self.folds, chosen, strict=True)
        scores = torch.cat([score(result, index) for result, index in pairs if len(index)])
        return scores[torch.cat(chosen).argsort().to(scores.device)]
