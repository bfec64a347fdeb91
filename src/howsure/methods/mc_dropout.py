"""Monte-Carlo dropout on the plain network (Gal & Ghahramani 2016).

mean = 1/T sum f_t(x), model_var = 1/T sum (f_t(x) - mean)**2, data_var = tau, a constant.
"""

from __future__ import annotations

from typing import Any

from howsure.methods.combine import prediction, spread, zeros_like_each
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.sampling import has_active_sites, sampled
from howsure.methods.setup import Setup
from howsure.prediction import Prediction


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with model variance and the constant data variance `tau`."""
    run = Pass(setup, x)
    with no_gradients():
        if not has_active_sites(setup, x):
            means = run.plain()
            nothing = zeros_like_each(means)
            return prediction(setup, run, means, nothing, nothing)
        outputs = sampled(setup, x, lambda _: run.plain())
        means = [output.mean(0) for output in outputs]
        model_vars = [spread(setup, output) for output in outputs]
        return prediction(setup, run, means, zeros_like_each(means), model_vars, samples=outputs[0])
