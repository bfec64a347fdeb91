"""Intervals with a guarantee: split conformal prediction, normalised by the predicted std."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import Calibrator
from howsure.calibrate.calibrated import CalibratedPrediction, with_intervals
from howsure.calibrate.held_out import HeldOut, held_out, mean_and_var
from howsure.calibrate.loader import Labels
from howsure.calibrate.scores import GroupedScores, Label
from howsure.prediction import Prediction
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False, repr=False)
class Conformal(Calibrator):
    """Intervals mean -+ q * std that cover a new target with probability of at least `level`.

    q is the k-th smallest of the n held-out scores |target - mean| / std, with
    k = ceil((n + 1) * level) (Lei et al. 2018). However wrong the std is, this holds as
    long as held-out and new data are exchangeable; a better std gives narrower intervals. Over
    draws of the held-out data, coverage is distributed as Beta(k, n + 1 - k).

    Each output, that is each element of an input's prediction, has its own q, and is covered with
    that probability by itself; with `joint=True` all outputs of an input are covered at once. With
    groups (Vovk et al. 2003, "Mondrian") the promise holds within each group.

    Attributes:
        scores: For each group the sorted scores, `(n, *outputs)`, or `(n,)` if joint.
        labels: The groups' labels, `None` without groups.
        shape: The shape of one input's outputs.
        joint: Whether all outputs are covered at once.
    """

    kind: ClassVar[str] = "conformal"
    scores: tuple[Tensor, ...]
    labels: tuple[Label, ...] | None
    shape: tuple[int, ...]
    joint: bool = False

    @classmethod
    def fit(
        cls,
        prediction: Prediction,
        target: Tensor,
        *,
        groups: Labels | None = None,
        joint: bool = False,
    ) -> Conformal:
        """The scores of held-out data.

        Args:
            prediction: Held-out predictions; a std of 0 is allowed.
            target: Their targets.
            groups: A label for each input, whole numbers or strings.
            joint: Cover all outputs of an input at once.
        """
        data = held_out(prediction, target)
        scores = normalised_scores(data)
        shape = tuple(scores.shape[1:])
        if joint:
            scores = scores.reshape(len(scores), -1).amax(1)
        found = GroupedScores.of(scores, groups)
        return cls(found.scores, found.labels, shape, joint)

    @property
    def grouped(self) -> GroupedScores:
        """The scores by group."""
        return GroupedScores(self.scores, self.labels)

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with conformal intervals; mean and variances stay."""
        return with_intervals(prediction, self, self.grouped.notes())

    def interval(
        self, prediction: Prediction, level: float = 0.95, *, groups: Labels | None = None
    ) -> tuple[Any, Any]:
        """Lower and upper end; infinite, with a warning, for groups too small for the level."""
        mean, var = mean_and_var(prediction)
        if tuple(mean.shape[1:]) != self.shape:
            raise ValueError(
                f"The calibrator was fitted for outputs of shape {self.shape}; this prediction has "
                f"shape {tuple(mean.shape)}."
            )
        q = self.grouped.quantile(level, groups, len(mean)).to(mean)
        if self.joint:
            q = q.reshape(-1, *[1] * len(self.shape))
        # An infinite score covers everything, also where the std is 0.
        reach = torch.where(torch.isinf(q), q, q * var.sqrt())
        fill = TensorTree(prediction.mean).unflatten
        return fill([mean - reach]), fill([mean + reach])


def normalised_scores(data: HeldOut) -> Tensor:
    """|error| / std; with a std of 0 a right prediction has score 0 and a wrong one infinity."""
    scores = data.error.abs() / data.var.sqrt()
    return torch.where(data.error == 0, torch.zeros_like(scores), scores)
