"""Cross-fitting: no held-out input is compared with itself.

Where the known inputs are the held-out ones, these are divided into folds, the same each time, and
those of a fold are scored by what the others give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

FOLDS = 5
# The ridge of a posterior or a covariance, relative to the mean of the diagonal; the larger one
# where the inputs are few held-out ones.
RIDGE, RIDGE_OF_FEW = 0.01, 0.1
Part = TypeVar("Part")
Result = TypeVar("Result")


def split(rows: int, number: int, parts: Sequence[Part]) -> Iterator[tuple[Part, Tensor]]:
    """The rows of a batch that go into each part; of five neighbors every part has one."""
    fold = (torch.arange(rows) + number) % len(parts)
    return ((part, (fold == k).nonzero()[:, 0]) for k, part in enumerate(parts))


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
    def of(
        cls, parts: Sequence[Part], fit: Callable[[Sequence[Part], float], Result]
    ) -> CrossFit[Result]:
        """From the sums of all folds, or from those of training inputs alone, with a ridge."""
        if len(parts) == 1:
            return cls(fit(parts, RIDGE))
        others = [[*parts[:k], *parts[k + 1 :]] for k in range(len(parts))]
        return cls(fit(parts, RIDGE_OF_FEW), tuple(fit(rest, RIDGE_OF_FEW) for rest in others))

    def score(
        self, rows: int, number: int, score: Callable[[Result, Tensor | slice], Tensor]
    ) -> Tensor:
        """The scores of a held-out batch, each row by known inputs of which it is none.

        `score` takes what known inputs give, and which rows to score by it.
        """
        if self.folds is None:
            return score(self.whole, slice(None))
        pairs = [pair for pair in split(rows, number, self.folds) if len(pair[1])]
        scores = torch.cat([score(result, index) for result, index in pairs])
        return scores[torch.cat([index for _, index in pairs]).argsort().to(scores.device)]
