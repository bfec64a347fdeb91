"""Predictions with what `fit` found: the scores of their inputs, and the variances they make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.estimators.variances import Variances, with_variances
from howsure.methods.activations import read, summarize_inputs
from howsure.posterior.laplace import one_for_zero
from howsure.posterior.scores import Known, Scores, log_distances
from howsure.posterior.variance_model import VarianceModel, VarianceParts
from howsure.prediction import Budget, Details, Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree, map_leaves


def score_inputs(
    setup: Setup,
    known: Known,
    x: Any,
    mean: Tensor,
    data: Tensor,
    *,
    z: Tensor | None = None,
    features: Tensor | None = None,
    activations: Mapping[str, Tensor] | None = None,
    number: int = 0,
) -> Scores:
    """What the variance of some predictions is made of.

    Args:
        setup: The model.
        known: The known inputs.
        x: The inputs.
        mean: Predictions, (rows, outputs).
        data: Their variance by the sensor's noise alone, (rows, outputs).
        z: Gradients with respect to the multipliers, (rows, outputs, multipliers).
        features: What enters the last linear layer, where there is a local error.
        activations: What goes into the layers; by default a pass reads them.
        number: Of a held-out batch, which says in which folds its inputs are.
    """
    rows, scores = len(mean), {}
    if known.posterior is not None and z is not None:
        scores["m"] = known.posterior.score(
            rows, number, lambda posterior, some: posterior.predictive_variance(z[some])
        )
    if known.distances is not None:
        if activations is None:
            activations = read(setup, x, known.layers).inputs
        scores["distances"] = log_distances(known.distances, activations, rows, number).exp()
        head = known.distances.whole.head
        if known.kernel is not None and head is not None:
            scores["kernel"] = known.kernel.variance(activations[head])
    if known.local_error is not None and features is not None:
        scores["local"], scores["nearest"] = known.local_error.at(features)
    if known.input_range is not None:
        summary = summarize_inputs(x, setup.batch_dim)
        scores["beyond"] = known.input_range.distance(summary)
    return replace(Scores.of(mean, data), **scores)


def modeled(
    sensor: Variances, parts: VarianceParts, z: Tensor | None, model: VarianceModel
) -> Variances:
    """The sensor's variances with the rest, as the variance model says.

    Args:
        sensor: Variances by the sensor's noise alone.
        parts: The variances by where they come from.
        z: Gradients with respect to the multipliers, (rows, outputs, multipliers).
        model: What `fit` has found.
    """
    residual = parts.residual + parts.local
    data, rest = residual + parts.data, parts.posterior + parts.growth
    share = (
        parts.data / one_for_zero(sensor.data.double()).sqrt() / one_for_zero((data + rest).sqrt())
    )

    def details() -> Details:
        of_sensor = sensor.details()
        assert of_sensor.covariance is not None and of_sensor.budget is not None
        sensed = with_variances(of_sensor.covariance.double(), parts.data)
        covariance = sensed + torch.diag_embed(residual)
        if model.posterior is not None and z is not None:
            covariance = covariance + with_variances(model.posterior.covariance(z), rest)
        else:
            covariance = covariance + torch.diag_embed(rest)
        budget = _budget(of_sensor.budget, sensor, parts, model)
        return Details(covariance.to(sensor.data), of_sensor.linear_share, budget)

    return Variances(
        data.to(sensor.data, copy=True),  # which users may write into
        rest.to(sensor.data, copy=True),
        lambda: sensor.standard_error * share.to(sensor.data),
        details,
    )


def flat_rows(setup: Setup, output: Any) -> Tensor:  # (rows, outputs)
    """All tensors of a model's output, one row for each input."""
    axis = setup.batch_dim
    tensors = [t[None] if axis is None else t.movedim(axis, 0) for t in TensorTree(output).tensors]
    return torch.cat([t.reshape(len(t), math.prod(t.shape[1:])) for t in tensors], 1)


def with_variance_model(setup: Setup, x: Any, sampled: Prediction | None) -> Prediction:
    """The prediction of a model without a posterior: what samples say about the sensor, and scores.

    Args:
        setup: With a variance model.
        x: The inputs.
        sampled: The prediction by samples of the sensor's noise; `None` without noise.
    """
    model = setup.variance_model
    assert model is not None
    if sampled is None:
        sampled = without_noise(read(setup, x, ()).output)
    mean, data = flat_rows(setup, sampled.mean), flat_rows(setup, sampled.data_var)
    return with_parts(
        setup, sampled, model.parts(score_inputs(setup, model.inputs_known, x, mean, data))
    )


def without_noise(output: Any) -> Prediction:
    """The output as a prediction without any variance."""
    nothing = map_leaves(torch.zeros_like, output)
    return Prediction(output, nothing, nothing, error=nothing)


def with_parts(setup: Setup, sampled: Prediction, parts: VarianceParts) -> Prediction:
    """The prediction with the variances of a variance model.

    Args:
        setup: With a variance model.
        sampled: The prediction by samples of the sensor's noise.
        parts: The variances, (rows, outputs), with all outputs of an input in one row.
    """
    model, structure = setup.variance_model, TensorTree(sampled.mean)
    assert model is not None

    def shaped(values: Tensor) -> Any:
        sizes, leaves = [flat_rows(setup, t).shape[1] for t in structure.tensors], []
        for part, like in zip(values.split(sizes, 1), structure.tensors, strict=True):
            moved = like.movedim(setup.batch_dim, 0) if setup.batch_dim else like
            leaf = part.reshape(moved.shape).to(like.dtype)
            leaves.append(leaf.movedim(0, setup.batch_dim) if setup.batch_dim else leaf)
        return structure.unflatten(leaves)

    # What an error of the sensor's std does to the total std.
    data, error = (flat_rows(setup, v).double() for v in (sampled.data_var, sampled.std_error))
    error = error * (parts.data / one_for_zero(data).sqrt() / one_for_zero(parts.total.sqrt()))
    sources = torch.stack([parts.data, parts.residual, parts.posterior, parts.growth])
    kinds, like = ("input", "residual", "model", "growth"), structure.tensors[0]
    return replace(
        sampled,
        data_var=shaped(parts.data + parts.residual),
        model_var=shaped(parts.posterior + parts.growth),
        error=shaped(error),
        novelty=shaped(parts.novelty) if model.has_novelty else None,
        joint_novelty=parts.joint.to(like) if model.has_novelty else None,
        degrees_of_freedom=model.degrees_of_freedom,
        notes=(*sampled.notes, *([model.note] if model.note else [])),
        details=Details(budget=Budget(("noise", *kinds[1:]), kinds, sources.to(like))),
    )


def _budget(
    of_sensor: Budget, sensor: Variances, parts: VarianceParts, model: VarianceModel
) -> Budget:
    """The sensors' shares in proportion, then residual, errors nearby, model and growth."""
    factor = (parts.data / one_for_zero(sensor.data.double())).to(sensor.data)
    names, rows = ["residual"], [parts.residual]
    if model.local_error is not None:
        names, rows = [*names, "local error"], [*rows, parts.local]
    if model.has_novelty:
        names, rows = [*names, "model", "growth"], [*rows, parts.posterior, parts.growth]
    maps = {
        name: variances * factor.reshape(*factor.shape, *(1,) * (variances.dim() - 2))
        for name, variances in of_sensor.elements.items()
    }
    variances = torch.stack(
        [*(factor * of_sensor.variances), *(row.to(sensor.data) for row in rows)]
    )
    return Budget((*of_sensor.names, *names), (*of_sensor.kinds, *names), variances, maps)
