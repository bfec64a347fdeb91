"""`method="auto"`: which method fits a setup, and why."""

from __future__ import annotations

from typing import Any

import torch

from howsure.estimators.softmax import is_elementwise
from howsure.gaussian_output import Gaussian
from howsure.isolation import random_state_kept
from howsure.methods import gradients
from howsure.methods.gradients import FEW_DIMENSIONS
from howsure.methods.method import Method, no_uncertainty_message
from howsure.methods.propagation import CONSTANT
from howsure.methods.sampling import NOISE_SAMPLING, sampling_for
from howsure.probe import probe_model
from howsure.problem import MOST_OUTPUTS, Problem
from howsure.setup import Setup
from howsure.trees import TensorTree, clone_tensors

# A network is small if it has at most so many weights, and its noise has few dimensions: inner
# products over few of them average little, so that gradients need many points, while samples of all
# of them run as one batch in next to no time.
SMALL_MODEL = 2**19
FEW_ELEMENTS = 64
# As many samples take a small network less time than the points that are as accurate: 3.5 %.
SMALL_SAMPLES = 400
# Points of a small network where gradients are needed for its own uncertainty.
SMALL_POINTS = 64


LEARNED = "The variance that the network itself predicts is part of `data_var`."

# A method, the setup for it, and what there is to say about it.
Choice = tuple[Method, Setup, tuple[str, ...]]


@torch.inference_mode(False)
def choose(setup: Setup, x: Any, *, may_be_certain: bool = False) -> Choice:
    """The method, the setup for it, and a note that says what was picked and why."""
    own_dropout = setup.placement.kind == "existing"
    has_model = setup.rate is not None or own_dropout or setup.is_fitted
    is_certain = setup.noise is None and not has_model
    predicts_variance = isinstance(setup.output, Gaussian)
    if is_certain and not predicts_variance and not may_be_certain:
        raise ValueError(no_uncertainty_message(setup))
    if is_certain and may_be_certain and not predicts_variance:
        return CONSTANT, setup, ()
    if is_certain:
        method, reason = CONSTANT, "there is no noise, and nothing was fitted"
    else:
        method, setup, reason = _pick(setup, x)
    if setup.prediction is None:  # The same number, whatever is chosen.
        setup = setup.replace(prediction="network" if setup.task == "regression" else "mean")
    note = f'"auto" chose "{method}": {reason}.'
    if not has_model:
        note += " Model uncertainty is not included; `.fit(loader)` adds it."
    notes = (note, LEARNED) if predicts_variance else (note,)
    return method, setup, notes


def _pick(setup: Setup, x: Any) -> tuple[Method, Setup, str]:
    if setup.variance_model is not None and setup.variance_model.dense:
        return NOISE_SAMPLING, setup, "it includes the model variance fitted for every pixel"
    if setup.variance_model is not None and setup.variance_model.note:
        return NOISE_SAMPLING, setup, "the fitted model variance has no posterior"
    if setup.temperature_model is not None and setup.temperature_model.dense:
        return NOISE_SAMPLING, setup, "it includes the temperature fitted for images"
    sampler = sampling_for(setup)
    outputs, elements = setup.cached(_size, x)
    directions = setup.noise_dimensions(x)
    has_few = directions < FEW_DIMENSIONS
    parameters = setup.model.parameters() if isinstance(setup.model, torch.nn.Module) else ()
    weights = sum(parameter.numel() for parameter in parameters)
    is_small = weights <= SMALL_MODEL and (elements <= FEW_ELEMENTS or has_few)
    # `fit` has counted the outputs: without any noise they cannot be told from rows here. Classes
    # at a temperature are chosen for as others: it needs no gradient.
    if setup.variance_model is not None or (setup.is_fitted and setup.noise is None):
        if (is_small or has_few) and setup.samples is None and setup.tolerance is None:
            setup = setup.replace(samples=SMALL_POINTS)
        return gradients.METHOD, setup, "it includes the fitted model variance"
    if setup.task != "regression" and not setup.cached(_has_one_row, x):
        return sampler, setup, "its classes are those of pixels or tokens"
    if outputs > MOST_OUTPUTS and not setup.cached(_has_softmax, x):
        return sampler, setup, f"{outputs} outputs are too many for a backward pass each"
    if sampler is NOISE_SAMPLING and (is_small or has_few):
        if is_small and setup.samples is None and setup.tolerance is None:
            setup = setup.replace(samples=SMALL_SAMPLES)
        how = f"{elements} noisy numbers and a small network: samples as one batch are cheaper"
        if has_few:
            how = f"noise of about {directions:.1f} directions: samples are cheaper than points"
        return sampler, setup, how
    plural = "s" if outputs > 1 else ""
    return gradients.METHOD, setup, f"{outputs} output{plural} with a backward pass each"


def outputs_of(setup: Setup, x: Any) -> int:
    """How many numbers the model returns for an input."""
    return setup.cached(probe_model, x).outputs


def _logits(setup: Setup, x: Any) -> list[torch.Tensor]:
    """What the model returns for some inputs."""
    with random_state_kept(), torch.no_grad():
        return TensorTree(setup.run(clone_tensors(x))).tensors


def _has_one_row(setup: Setup, x: Any) -> bool:
    """Whether the outputs are one row of logits for each input."""
    return all(logits.dim() <= 2 for logits in _logits(setup, x))


def _has_softmax(setup: Setup, x: Any) -> bool:
    """Whether the outputs are one row of logits for each input, of which the largest count."""
    return setup.task != "regression" and all(
        logits.dim() == 2 and not is_elementwise(logits, setup.task) for logits in _logits(setup, x)
    )


def _size(setup: Setup, x: Any) -> tuple[int, int]:
    """Outputs per input, and noisy numbers per input."""
    probe = setup.cached(probe_model, x)
    return probe.outputs, Problem(setup, x, probe).elements
