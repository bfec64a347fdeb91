"""The decisions of a classifier: what it chose, how sure it is, and whether it is right."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from howsure.prediction import entropy
from howsure.report.outcomes import Outcome


@dataclass(frozen=True, eq=False)
class Decisions:
    """Every decision of an outcome: one for each input, or for each pixel of it."""

    probabilities: Tensor  # (n, classes)
    target: Tensor  # (n,)
    confidence: Tensor  # (n,), probability of the predicted class
    choice: Tensor  # (n,)
    std: Tensor  # (n,), of that probability
    entropy: Tensor  # (n,)

    @property
    def wrong(self) -> Tensor:
        """1 where the predicted class is not the target."""
        return (self.choice != self.target).double()


def decisions(outcome: Outcome) -> Decisions:
    """The decisions, elements of all inputs together."""
    rows, var = (t.movedim(1, -1).flatten(0, 1) for t in (outcome.mean, outcome.var))
    confidence, choice = rows.max(1)
    std = var.gather(1, choice.unsqueeze(1)).squeeze(1).sqrt()
    return Decisions(rows, outcome.target.flatten(), confidence, choice, std, entropy(rows))
