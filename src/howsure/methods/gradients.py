"""The default: the variance from the network's own gradients at a few noisy points.

Any differentiable network, without rules (docs/gradients.md). The assumptions are checked on the
first call for a model; where they do not hold, the method samples and says why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import Calls, tensors_of
from howsure.gradients.checks import verdict_of
from howsure.gradients.layout import Verdict, layout_of
from howsure.gradients.modelled import Modelled, modelled
from howsure.gradients.sources import Sources
from howsure.methods import mc_dropout, noise_sampling
from howsure.methods.classified import certain, classified
from howsure.methods.examined import examined_as, require_gradients
from howsure.methods.method import Method
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.values.running import keep_freed_memory
from howsure.values.trees import map_leaves


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance, covariance, budget and standard error."""
    keep_freed_memory()
    if _is_certain(setup, x):
        return certain(setup, x)
    model = setup.variance_model
    watch = model is not None and model.posterior is not None
    local = None if model is None else model.local_error
    verdict = verdict_of(setup.watching(x) if watch else setup, x)
    if setup.variance_model is not None:
        require_gradients(setup, verdict)
    elif verdict.reason is not None:
        return _sampled(setup, x, verdict)
    if setup.task == "classification" and all(t.numel() for t in tensors_of(x)):
        return classified(setup, x, verdict)
    found = examined_as(verdict, setup, x, watch=watch, features=local is not None)
    own = Modelled(found.own)
    if model is not None:
        near = None if local is None or found.features is None else local.at(found.features)
        own = modelled(found.own, found.mean, found.z, model, near)
    return replace(_prediction(setup, found.calls, found.mean, own), notes=found.notes)


def _is_certain(setup: Setup, x: Any) -> bool:
    """Whether nothing is random but the class itself."""
    if setup.task == "regression" or setup.noise is not None:
        return False
    verdict = layout_of(setup, x)
    return not verdict.random and not Sources.of(setup, x, verdict.layout).names


def _sampled(setup: Setup, x: Any, verdict: Verdict) -> Prediction:
    """The prediction by sampling, with the reason."""
    # Which knows of temperatures.
    method = sampling_for(setup) if setup.temperature_model is None else noise_sampling.METHOD
    found = method.predict(setup.with_(samples=None), x)
    reason = f'"gradients" cannot be used, so "{method}" was: {verdict.reason}.'
    return replace(found, method=method.name, notes=(reason, *found.notes))


def sampling_for(setup: Setup) -> Method:
    """The method that samples what a setup is unsure about."""
    return mc_dropout.METHOD if setup.noise is None else noise_sampling.METHOD


def _prediction(setup: Setup, calls: Calls, mean: Tensor, found: Modelled) -> Prediction:
    """The prediction in the structure of the model's output; all tensors are (rows, outputs)."""
    assert calls.parts is not None
    own = found.variances.with_constant(setup.residual_var)
    fill = calls.parts.filled

    def shaped(flat: Tensor) -> Any:
        return fill(calls.shaped(flat.to(calls.dtype)))

    variances = [
        map_leaves(lambda leaf: leaf if isinstance(leaf, Tensor) else 0.0, shaped(flat))
        for flat in (own.data, own.model)
    ]
    return Prediction(
        shaped(mean),
        *variances,
        covariance=own.covariance,
        sources=own.budget,
        linear_share=own.linear_share,
        std_error=shaped(own.standard_error),
        novelty=None if found.novelty is None else shaped(found.novelty),
        joint_novelty=found.joint,
    )


METHOD = Method(
    "gradients",
    predict,
    may_draw=True,
    has_budget=True,
    has_rate=True,
    has_posterior=True,
    in_closed_form=True,
    audited=({}, {"samples": 32}),
)
