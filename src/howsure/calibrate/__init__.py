"""Corrects predictions by what held-out data show; see docs/calibration.md for which one when."""

from __future__ import annotations

from typing import Any

from howsure.calibrate.calibrators import AffineVariance as AffineVariance
from howsure.calibrate.calibrators import CalibratedPrediction as CalibratedPrediction
from howsure.calibrate.calibrators import Calibrator as Calibrator
from howsure.calibrate.calibrators import IsotonicQuantiles as IsotonicQuantiles
from howsure.calibrate.calibrators import Temperature as Temperature
from howsure.calibrate.calibrators import VarianceScale as VarianceScale
from howsure.calibrate.calibrators import class_probabilities as class_probabilities
from howsure.calibrate.conformal import Conformal as Conformal
from howsure.calibrate.conformal import ConformalClasses as ConformalClasses

_ALL = (VarianceScale, AffineVariance, IsotonicQuantiles, Temperature, Conformal, ConformalClasses)
CALIBRATORS: dict[str, type[Calibrator]] = {calibrator.kind: calibrator for calibrator in _ALL}


def calibrator_class(calibrator: str | type[Calibrator]) -> type[Calibrator]:
    """The calibrator of that name, or the class itself.

    Examples:
        >>> hs.calibrate.calibrator_class("conformal").__name__
        'Conformal'
    """
    if isinstance(calibrator, type) and issubclass(calibrator, Calibrator):
        return calibrator
    if calibrator not in CALIBRATORS:
        raise ValueError(f"`calibrator` must be one of {list(CALIBRATORS)}, not {calibrator!r}.")
    return CALIBRATORS[calibrator]


def from_state(state: dict[str, Any]) -> Calibrator:
    """The calibrator whose `state()` it was, of any kind.

    Examples:
        >>> scale = hs.calibrate.VarianceScale(torch.tensor(4.0))
        >>> hs.calibrate.from_state(scale.state())
        VarianceScale(scale=4)
    """
    kind = state.get("calibrator") if isinstance(state, dict) else None
    return calibrator_class(str(kind)).from_state(state)
