"""Corrects predictions by what held-out data show; see docs/calibration.md for which one when."""

from howsure.calibrate.affine_variance import AffineVariance as AffineVariance
from howsure.calibrate.affine_variance import VarianceScale as VarianceScale
from howsure.calibrate.base import Calibrator as Calibrator
from howsure.calibrate.calibrated import CalibratedPrediction as CalibratedPrediction
from howsure.calibrate.catalogue import CALIBRATORS as CALIBRATORS
from howsure.calibrate.catalogue import from_state as from_state
from howsure.calibrate.catalogue import named as named
from howsure.calibrate.conformal import Conformal as Conformal
from howsure.calibrate.conformal_classes import ConformalClasses as ConformalClasses
from howsure.calibrate.isotonic_quantiles import IsotonicQuantiles as IsotonicQuantiles
from howsure.calibrate.temperature import Temperature as Temperature
from howsure.calibrate.temperature import class_probabilities as class_probabilities
