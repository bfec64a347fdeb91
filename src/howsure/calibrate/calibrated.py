"""A prediction whose intervals come from a calibrator and not from the Gaussian."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from howsure.prediction import Prediction

if TYPE_CHECKING:
    from howsure.calibrate.base import Calibrator


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedPrediction(Prediction):
    """A prediction with the intervals, or prediction sets, of a calibrator.

    Mean, variances and `distribution()` stay those of the method.

    Attributes:
        calibrator: What gives the intervals.
    """

    calibrator: Calibrator | None = None

    def interval(self, level: float = 0.95, **options: object) -> tuple[Any, Any]:
        """Lower and upper end of the calibrator's interval; options are the calibrator's."""
        assert self.calibrator is not None
        return self.calibrator.interval(self, level, **options)

    def sets(self, level: float = 0.9, **options: object) -> Tensor:
        """The calibrator's prediction sets, `(batch, classes, ...)`, bool."""
        chosen = getattr(self.calibrator, "sets", None)
        if chosen is None:
            raise TypeError("Only `ConformalClasses` gives prediction sets; use `.interval`.")
        return chosen(self, level, **options)


def with_intervals(
    prediction: Prediction, calibrator: Calibrator, notes: tuple[str, ...] = ()
) -> CalibratedPrediction:
    """The prediction with intervals from a calibrator."""
    refuse_calibrated_intervals(prediction)
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    values["notes"] = (*prediction.notes, *notes)
    return CalibratedPrediction(**values, calibrator=calibrator)


def refuse_calibrated_intervals(prediction: Prediction) -> None:
    """An error where a second calibrator would spoil what the first one promises."""
    if isinstance(prediction, CalibratedPrediction):
        raise ValueError(
            f"The intervals of this prediction are already those of "
            f"`{type(prediction.calibrator).__name__}`, which must come last; scale variances "
            "before it."
        )
