"""Monte-Carlo dropout on the plain network (Gal & Ghahramani 2016).

mean = 1/T sum f_t(x), model_var = 1/T sum (f_t(x) - mean)**2, data_var = residual_var, a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from howsure.methods.method import Method
from howsure.methods.monte_carlo import Samples
from howsure.methods.passes import (
    Pass,
    has_active_sites,
    no_gradients,
    prediction,
    sampled,
    spread,
    zeros_like_each,
)
from howsure.prediction import Prediction
from howsure.setup import Setup

# As many as one needs for a std within 5 %; and where a tolerance gives up.
SAMPLES = 200
MOST_SAMPLES = 2**14


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with model variance and the constant data variance `residual_var`."""
    run = Pass(setup, x)
    with no_gradients():
        if not has_active_sites(setup, x):
            means = run.plain()
            nothing = zeros_like_each(means)
            return prediction(setup, run, means, nothing, nothing)
        outputs = _outputs(setup, x, run)
        run.settle()
        means = [output.mean(0) for output in outputs]
        if setup.prediction == "network":
            means = list(run.plain())
        model_vars = [spread(setup, output) for output in outputs]
        found = prediction(
            setup, run, means, zeros_like_each(means), model_vars, samples=outputs[0]
        )
        return replace(found, std_error=_std_error(run, outputs))


def _outputs(setup: Setup, x: Any, run: Pass) -> tuple[Tensor, ...]:
    """The outputs of the given number of samples, or of as many as all rows need."""
    samples = setup.samples or SAMPLES
    while True:
        outputs = sampled(setup.with_(samples=samples), x, lambda _: run.plain())
        if setup.tolerance is None or 2 * samples > MOST_SAMPLES:
            return outputs
        found = [Samples.of(output.flatten(2).unsqueeze(1)) for output in _at_least_3d(outputs)]
        if all(bool(each.are_precise(setup.tolerance).all()) for each in found):
            return outputs
        samples *= 2


def _at_least_3d(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [output.unsqueeze(-1) if output.dim() < 3 else output for output in outputs]


def _std_error(run: Pass, outputs: Sequence[Tensor]) -> Any:
    """Of every std; for classification of the probabilities."""
    assert run.parts is not None
    errors = [
        Samples.of(wide.flatten(2).unsqueeze(1)).std_error.reshape(output.shape[1:])
        for output, wide in zip(outputs, _at_least_3d(outputs), strict=True)
    ]
    return errors[0] if run.setup.task == "classification" else run.parts.unflatten_variance(errors)


METHOD = Method(
    "mc_dropout",
    predict,
    has_data_var=False,
    has_rate=True,
    in_closed_form=True,
    draws_masks=True,
    is_sampling=True,
    audited=({"samples": 20},),
)
