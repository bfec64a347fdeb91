"""All calibrators by name."""

from __future__ import annotations

from typing import Any

from howsure.calibrate.affine_variance import AffineVariance, VarianceScale
from howsure.calibrate.base import Calibrator
from howsure.calibrate.conformal import Conformal
from howsure.calibrate.conformal_classes import ConformalClasses
from howsure.calibrate.isotonic_quantiles import IsotonicQuantiles
from howsure.calibrate.temperature import Temperature

CALIBRATORS: dict[str, type[Calibrator]] = {
    each.kind: each
    for each in (
        VarianceScale,
        AffineVariance,
        IsotonicQuantiles,
        Temperature,
        Conformal,
        ConformalClasses,
    )
}


def named(calibrator: str | type[Calibrator]) -> type[Calibrator]:
    """The calibrator of that name, or the class itself."""
    if isinstance(calibrator, type) and issubclass(calibrator, Calibrator):
        return calibrator
    if calibrator not in CALIBRATORS:
        raise ValueError(f"`calibrator` must be one of {list(CALIBRATORS)}, not {calibrator!r}.")
    return CALIBRATORS[calibrator]


def from_state(state: dict[str, Any]) -> Calibrator:
    """The calibrator whose `state()` it was, of any kind."""
    kind = state.get("calibrator") if isinstance(state, dict) else None
    if kind not in CALIBRATORS:
        raise ValueError(
            f"This is the state of the calibrator {kind!r}; howsure knows {list(CALIBRATORS)}."
        )
    return CALIBRATORS[kind].from_state(state)
