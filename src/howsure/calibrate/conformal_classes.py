"""Prediction sets with a guarantee: split conformal prediction for classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Tensor

from howsure.calibrate.base import Calibrator
from howsure.calibrate.calibrated import CalibratedPrediction, with_intervals
from howsure.calibrate.held_out import check_labels, mean_and_var
from howsure.calibrate.loader import Labels
from howsure.calibrate.scores import GroupedScores, Label
from howsure.prediction import Prediction


@dataclass(frozen=True, eq=False, repr=False)
class ConformalClasses(Calibrator):
    """Prediction sets that cover the true class with probability of at least `level`.

    A class is in the set if 1 - p <= q, with q the k-th smallest held-out 1 - p of the true class,
    k = ceil((n + 1) * level) (Sadinle et al. 2019). If the
    probabilities are right, no sets with that coverage are smaller on average; a set may be empty,
    where no class is likely enough. Groups as in
    `Conformal`: with the labels themselves unknown, use what the input tells.

    Attributes:
        scores: For each group the sorted scores, `(n, ...)`.
        labels: The groups' labels, `None` without groups.
        classes: How many classes there are.
    """

    kind: ClassVar[str] = "conformal_classes"
    scores: tuple[Tensor, ...]
    labels: tuple[Label, ...] | None
    classes: int

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, groups: Labels | None = None
    ) -> ConformalClasses:
        """The scores of held-out class probabilities `(n, classes, ...)` and labels `(n, ...)`."""
        probabilities = _probabilities(prediction).detach().cpu().double()
        target = check_labels(probabilities, target)
        scores = 1 - probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
        found = GroupedScores.of(scores, groups)
        return cls(found.scores, found.labels, probabilities.shape[1])

    @property
    def grouped(self) -> GroupedScores:
        """The scores by group."""
        return GroupedScores(self.scores, self.labels)

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with `.sets(level)`; mean and variances stay."""
        return with_intervals(prediction, self, self.grouped.notes())

    def sets(
        self, prediction: Prediction, level: float = 0.9, *, groups: Labels | None = None
    ) -> Tensor:
        """Which classes are in the set, `(batch, classes, ...)`, bool."""
        probabilities = _probabilities(prediction)
        if tuple(probabilities.shape[1:]) != (self.classes, *self.scores[0].shape[1:]):
            raise ValueError(
                f"The calibrator was fitted for {self.classes} classes and places "
                f"{tuple(self.scores[0].shape[1:])}; this prediction has shape "
                f"{tuple(probabilities.shape)}."
            )
        q = self.grouped.quantile(level, groups, len(probabilities)).unsqueeze(1)
        # In float64 as in `fit`: rounding to float32 could push a score past its own quantile.
        return (1 - probabilities.double() <= q.to(probabilities.device)).detach()

    def interval(self, prediction: Prediction, level: float = 0.95) -> NoReturn:
        """An error: classes have no interval."""
        raise TypeError("Classes have no interval; use `.sets(level)`.")


def _probabilities(prediction: Prediction) -> Tensor:
    mean, _ = mean_and_var(prediction)
    if mean.dim() < 2:
        raise ValueError(
            f"Class probabilities have shape (batch, classes, ...), not {tuple(mean.shape)}."
        )
    low, total = float(mean.min()), mean.sum(1)
    # 1e-2: the rounding of bfloat16.
    if not low >= 0 or not bool(((total - 1).abs() < 1e-2).all()):
        raise ValueError(
            "The prediction is not one of class probabilities, which are not negative and sum to "
            '1 along dim 1; use `Uncertain(..., task="classification")`.'
        )
    return mean
