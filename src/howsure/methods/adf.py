"""One propagation without dropout: the sensor's noise alone (Gast & Roth 2018)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from howsure.methods.method import Method
from howsure.methods.passes import Pass, no_gradients, prediction, zeros_like_each
from howsure.prediction import Prediction
from howsure.setup import Setup


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its data variance; the model variance is 0."""
    run = Pass(setup, x)
    with no_gradients():
        means, variances = _moments(setup, run)
        centres = means if setup.prediction != "network" else run.plain()
        return prediction(setup, run, centres, variances, zeros_like_each(variances))


def _moments(
    setup: Setup, run: Pass
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | list[Tensor]]:
    if setup.noise is None:
        means = run.plain()
        return means, zeros_like_each(means)
    return run.gaussian()


METHOD = Method("adf", predict, has_rules=True, needs_noise=True, is_diagonal=True, audited=({},))
