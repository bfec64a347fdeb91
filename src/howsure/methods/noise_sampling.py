"""Monte Carlo: the plain network on noisy inputs, with dropout masks if there is a rate.

What assumed density filtering approximates, and what users compare it with. Every pass draws noise
and, if there is a rate, a mask; pairs of passes share a mask, so that the law of total variance
splits: data_var = E[variance at a given mask] = E[(a - b)**2 / 2], model_var = the rest. All
samples run as one batch, and are the same for every row.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import Calls
from howsure.gradients.layout import RANDOM, TOGETHER, Verdict, layout_of
from howsure.gradients.sources import Sources
from howsure.methods.classified import certain, judged_at, with_temperature
from howsure.methods.draws import (
    MOST_SAMPLES,
    SAMPLES,
    lost_in_rounding,
    sampled_at,
    stand_alone,
    unchanged,
)
from howsure.methods.method import Method, about_nothing
from howsure.methods.monte_carlo import Samples
from howsure.methods.passes import Pass, own_random_numbers
from howsure.methods.pixels import with_model_var
from howsure.methods.temperature import Judged
from howsure.prediction import Prediction
from howsure.progress import keep_freed_memory
from howsure.setup import Setup
from howsure.trees import is_tracing


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its sampled variances and their standard error.

    With what `fit` found about dense outputs, samples tell the sensor's part.
    """
    keep_freed_memory()
    if setup.temperature_model is not None:
        return _classified(setup, x)
    if setup.variance_model is None:
        return _sampled(setup, x)
    alone = setup.with_(variance_model=None)
    return with_model_var(setup, x, None if setup.noise is None else _sampled(alone, x))


def _classified(setup: Setup, x: Any) -> Prediction:
    """Class probabilities at every pixel; all samples of an image have its temperature."""
    if setup.noise is None and not setup.has_masks(x):
        return certain(setup, x)
    judged = judged_at(setup, x)
    return with_temperature(_sampled(setup, x, judged), judged)


def _layout(setup: Setup, x: Any) -> Verdict:
    """How the model can be run; with samples, too, that are rows of one batch, if they may be."""
    verdict = setup.once(layout_of, x)
    if verdict.layout != "folded" or is_tracing():
        return verdict
    sources = Sources.of(setup, x, verdict.layout)
    calls = verdict.calls(setup, x, sources)
    with torch.no_grad():
        are_alone = not calls.count or stand_alone(calls, sources, setup.samples or SAMPLES)
    return verdict if are_alone else Verdict("whole", note=TOGETHER.format(axis=setup.batch_dim))


def _sampled(setup: Setup, x: Any, judged: Judged | None = None) -> Prediction:
    verdict = setup.once(_layout, x)
    sources = Sources.of(setup, x, verdict.layout)
    calls = verdict.calls(setup, x, sources)
    classes = Pass(setup, x)
    calls.finish = lambda out: classes.with_entropy(out if judged is None else judged.cooled(out))
    samples = setup.samples or SAMPLES
    if samples < (4 if sources.active else 2):
        raise ValueError(
            "`samples` is too small for a variance; use at least 2, or 4 with dropout."
        )
    with torch.no_grad(), own_random_numbers(setup.seed) if verdict.random else nullcontext():
        found = sampled_at(calls, sources, samples)
        is_plain = setup.prediction == "network" and not verdict.random
        # What is returned besides numbers is that of a plain pass.
        needs_pass = is_plain or not calls.returns_one_tensor
        own = calls.flat(calls.plain(), 1)[0] if needs_pass else None
    notes = [] if verdict.note is None else [verdict.note]
    notes += [f"{RANDOM}; they are part of `data_var`."] if verdict.random else []
    if setup.tolerance is not None and not bool(found.are_precise(setup.tolerance).all()):
        notes.append(
            f"Some inputs did not reach the tolerance of {setup.tolerance:g} with "
            f"{MOST_SAMPLES} samples; `std_error` says what they reached."
        )
    notes += unchanged(calls, sources, found.are_still, samples)
    notes += () if is_tracing() else lost_in_rounding(calls, sources)
    notes += about_nothing(setup, verdict, sources)
    return _prediction(setup, calls, found, own if is_plain else None, tuple(notes))


def _prediction(
    setup: Setup, calls: Calls, found: Samples, plain: Tensor | None, notes: tuple[str, ...]
) -> Prediction:
    """The prediction in the structure of the model's output."""
    assert calls.parts is not None
    mean = found.mean if plain is None else plain
    data, model = found.data_var, found.model_var
    if found.size == 1 and setup.noise is None:
        data, model = model, data

    if isinstance(setup.residual_var, Tensor) or setup.residual_var:
        data = data + setup.residual_var
    means, numbers = calls.shaped(mean), (data, model, found.std_error)
    data_vars, model_vars, errors = (calls.shaped(each, wide=True) for each in numbers)
    if setup.task == "regression":
        values, in_place = calls.parts.unflatten(means), calls.parts.unflatten_variance
        data_var, model_var = in_place(data_vars), in_place(model_vars)
        return Prediction(values, data_var, model_var, notes, std_error=in_place(errors))
    logits = Prediction(means[1], data_vars[1], model_vars[1], std_error=errors[1])
    return Prediction(
        means[0],
        data_vars[0],
        model_vars[0],
        notes,
        logits,
        expected_entropy=calls.shaped(found.mean)[2].squeeze(1),
        std_error=errors[0],
    )


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
