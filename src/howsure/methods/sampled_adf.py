"""The paper's method: T propagations with dropout masks (Loquercio et al. 2020, Eq. 16).

mean = 1/T sum mu_t, data_var = 1/T sum v_t, model_var = 1/T sum (mu_t - mean)**2. The model
variance is that of the propagated means, so it depends on the sensor's noise.
"""

from __future__ import annotations

from typing import Any

from howsure.methods import adf, mc_dropout
from howsure.methods.method import Method
from howsure.methods.passes import (
    SAMPLES,
    Pass,
    has_active_sites,
    no_gradients,
    prediction,
    sampled,
    spread,
)
from howsure.moments.prefix import Prefix
from howsure.prediction import Prediction
from howsure.setup import Setup


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance."""
    if setup.noise is None:
        return mc_dropout.predict(setup.with_(samples=setup.samples or SAMPLES), x)
    if not has_active_sites(setup, x):
        return adf.predict(setup, x)
    run = Pass(setup, x)

    def one_pass(prefix: Prefix | None) -> tuple[Any, ...]:
        means, variances = run.gaussian(prefix)
        return (*means, *variances)

    with no_gradients():
        outputs = sampled(setup, x, one_pass)
        run.settle()
        half = len(outputs) // 2
        means, variances = outputs[:half], outputs[half:]
        centres = (
            means if setup.prediction != "network" else sampled(setup, x, lambda _: run.plain())
        )
        return prediction(
            setup,
            run,
            [centre.mean(0) for centre in centres],
            [var.mean(0) for var in variances],
            [spread(setup, mean) for mean in means],
            samples=means[0],
        )


METHOD = Method(
    "sampled_adf",
    predict,
    has_rules=True,
    has_rate=True,
    in_closed_form=True,
    draws_masks=True,
    needs_noise=True,
    is_diagonal=True,
    audited=({"samples": 20},),
)
