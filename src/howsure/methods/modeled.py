"""Predictions with what `fit` found: the scores of their inputs, and the variances they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.estimators.variances import Variances, with_variances
from howsure.methods.activations import Activations, read_layers, summarize_inputs
from howsure.posterior.laplace import one_for_zero
from howsure.posterior.scores import Known, Scores
from howsure.posterior.variance_model import VarianceModel, VarianceParts
from howsure.prediction import Budget, Details, Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree, map_leaves


@dataclass(frozen=True, eq=False)
class Modeled:
    """Variances of all rows and outputs, and how new the inputs are.

    Attributes:
        variances: Data and model variance, with the budget.
        novelty: Of every output, (rows, outputs); `None` where inputs are compared with nothing.
        joint: Of all outputs together, (rows,).
    """

    variances: Variances
    novelty: Tensor | None = None
    joint: Tensor | None = None


def score_inputs(
    setup: Setup,
    known: Known,
    x: Any,
    mean: Tensor,
    data: Tensor,
    *,
    z: Tensor | None = None,
    features: Tensor | None = None,
    activations: Activations | None = None,
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
    if activations is None and known.layers:
        activations, _ = read_layers(setup, x, known.layers)
    has_range = known.input_range is not None
    return known.scores(
        mean,
        data,
        z=z,
        features=features,
        activations=None if activations is None else activations.inputs,
        summary=summarize_inputs(x, setup.batch_dim) if has_range else None,
        number=number,
    )


def modeled(sensor: Variances, scores: Scores, z: Tensor | None, model: VarianceModel) -> Modeled:
    """The sensor's variances with the rest, as the variance model says.

    Args:
        sensor: Variances by the sensor's noise alone.
        scores: What the variance is made of.
        z: Gradients with respect to the multipliers, (rows, outputs, multipliers).
        model: What `fit` has found.
    """
    parts = model.parts(scores)
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

    variances = Variances(
        data.to(sensor.data, copy=True),  # which users may write into
        rest.to(sensor.data, copy=True),
        lambda: sensor.standard_error * share.to(sensor.data),
        details,
    )
    if not model.has_novelty:
        return Modeled(variances)
    return Modeled(variances, parts.novelty.to(sensor.data), parts.joint.to(sensor.data))


def flat_rows(setup: Setup, output: Any) -> Tensor:  # (rows, outputs)
    """All tensors of a model's output, one row for each input."""
    axis = setup.batch_dim
    tensors = [t.movedim(axis, 0) if axis else t for t in TensorTree(output).tensors]
    rows = 1 if axis is None else len(tensors[0])
    return torch.cat([t.reshape(rows, -1) for t in tensors], 1)


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
        _, output = read_layers(setup, x, ())
        nothing = map_leaves(torch.zeros_like, output)
        sampled = Prediction(output, nothing, nothing, error=nothing)
    structure = TensorTree(sampled.mean)
    rows = 1 if setup.batch_dim is None else structure.tensors[0].shape[setup.batch_dim]

    def shaped(values: Tensor) -> Any:
        sizes = [t.numel() // rows for t in structure.tensors]
        leaves = []
        for part, like in zip(values.split(sizes, 1), structure.tensors, strict=True):
            moved = like.movedim(setup.batch_dim, 0) if setup.batch_dim else like
            leaf = part.reshape(moved.shape).to(like.dtype)
            leaves.append(leaf.movedim(0, setup.batch_dim) if setup.batch_dim else leaf)
        return structure.unflatten(leaves)

    mean, data, error = (
        flat_rows(setup, values) for values in (sampled.mean, sampled.data_var, sampled.std_error)
    )
    parts = model.parts(score_inputs(setup, model.inputs_known, x, mean, data))
    sources = torch.stack([parts.data, parts.residual, parts.posterior, parts.growth])
    kinds = ("input", "residual", "model", "growth")
    error = error.double() * (data.double() / one_for_zero(parts.total)).sqrt()
    return replace(
        sampled,
        data_var=shaped(parts.data + parts.residual),
        model_var=shaped(parts.posterior + parts.growth),
        error=shaped(error),
        novelty=shaped(parts.novelty) if model.has_novelty else None,
        joint_novelty=parts.joint.to(mean) if model.has_novelty else None,
        degrees_of_freedom=model.degrees_of_freedom,
        notes=(*sampled.notes, *([model.note] if model.note else [])),
        details=Details(budget=Budget(("noise", *kinds[1:]), kinds, sources.to(mean))),
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
