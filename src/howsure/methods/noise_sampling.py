"""Monte Carlo: the plain network on noisy inputs, with dropout masks if there is a rate.

What assumed density filtering approximates, and what users compare it with.
"""

from __future__ import annotations

from typing import Any

import torch

from howsure.methods.classified import certain, class_scores, with_temperature
from howsure.methods.method import Method
from howsure.methods.modelled import with_variance_model
from howsure.methods.pixels import with_model_var
from howsure.methods.sampling import predict_by_sampling
from howsure.prediction import Prediction
from howsure.progress import keep_freed_memory
from howsure.setup import Setup


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its sampled variances and their standard error.

    With what `fit` found about dense outputs, samples tell the sensor's part.
    """
    keep_freed_memory()
    if setup.temperature_model is not None:  # All samples of an image have its temperature.
        if setup.noise is None and not setup.has_masks(x):
            return certain(setup, x)
        scores = class_scores(setup, x)
        return with_temperature(predict_by_sampling(setup, x, scores), scores)
    if setup.variance_model is None:
        return predict_by_sampling(setup, x)
    sensor = setup.with_(variance_model=None)
    sampled = None if setup.noise is None else predict_by_sampling(sensor, x)
    if setup.variance_model.head is None:
        return with_variance_model(setup, x, sampled)
    return with_model_var(setup, x, sampled)


METHOD = Method(
    "noise_sampling",
    predict,
    may_draw=True,
    has_rate=True,
    has_dense_posterior=True,
    in_closed_form=True,
    draws_noise=True,
    is_sampling=True,
    audited=({"samples": 20},),
)
