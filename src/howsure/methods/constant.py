"""The plain prediction with one constant variance: the floor that every method must beat."""

from __future__ import annotations

from typing import Any

from howsure.methods.method import Method
from howsure.methods.passes import Pass, no_gradients, prediction, zeros_like_each
from howsure.prediction import Prediction
from howsure.setup import Setup


def predict(setup: Setup, x: Any) -> Prediction:
    """The plain prediction; its variance is `residual_var`, the error on held-out data."""
    run = Pass(setup, x)
    with no_gradients():
        means = run.plain()
        nothing = zeros_like_each(means)
        return prediction(setup, run, means, nothing, nothing)


METHOD = Method("constant", predict, has_data_var=False)
