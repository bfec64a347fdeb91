"""Dense outputs with what `fit` found: the sensor's part by samples, the model's by its masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.methods.pixel_directions import along_directions
from howsure.methods.pixel_head import at_pixels
from howsure.posterior.pixels import PixelGradients
from howsure.posterior.variance_model import ALL_LAYERS, Scores, VarianceModel, VarianceParts
from howsure.prediction import Budget, Details, Prediction
from howsure.setup import Setup


def with_model_var(setup: Setup, x: Any, sampled: Prediction | None) -> Prediction:
    """The prediction at every pixel, as the variance model says.

    Args:
        setup: With a variance model of dense outputs.
        x: The inputs.
        sampled: What samples say about the sensor; `None` without noise.
    """
    model = setup.variance_model
    assert model is not None and model.head is not None and model.posterior is not None
    seen = gradients_at_pixels(setup, x, model.head)
    m = seen.predictive_variance(model.posterior)
    known = sampled or _without_noise(seen.output)
    mean = known.mean if setup.prediction == "mean" else seen.output
    data = seen.by_pixel(known.data_var)
    parts = parts_at_pixels(model, seen.by_pixel(mean), data, m)
    assert known.std_error is not None
    error = seen.by_pixel(known.std_error) * _share(parts, data)
    return replace(
        _prediction(seen, parts, error),
        mean=mean,
        notes=known.notes,
        degrees_of_freedom=model.degrees_of_freedom,
    )


def gradients_at_pixels(setup: Setup, x: Any, head: str) -> PixelGradients:
    """Those of the masks of all layers along some directions, or of the last layer alone."""
    return along_directions(setup, x) if head == ALL_LAYERS else at_pixels(setup, x, head)


def _without_noise(output: Tensor) -> Prediction:
    nothing = torch.zeros_like(output)
    return Prediction(output, nothing, nothing, error=nothing)


def parts_at_pixels(model: VarianceModel, mean: Tensor, data: Tensor, m: Tensor) -> VarianceParts:
    """The variance by part, (inputs, pixels, outputs) each; the joint novelty is (inputs,)."""
    found = model.parts(Scores.of(*(each.flatten(0, 1) for each in (mean, data, m))))

    def own(part: Tensor) -> Tensor:
        return part.reshape(m.shape)

    novelty = own(found.novelty)
    return VarianceParts(
        own(found.residual),
        own(found.local),
        own(found.data),
        own(found.posterior),
        own(found.growth),
        novelty,
        novelty.mean((1, 2)) / model.joint_known,
    )


def _share(parts: VarianceParts, data: Tensor) -> Tensor:
    """What an error of the sensor's std does to the total std."""
    std = parts.total.sqrt()
    return parts.data / _positive(data.double()).sqrt() / _positive(std)


def _prediction(seen: PixelGradients, parts: VarianceParts, error: Tensor) -> Prediction:
    def shaped(numbers: Tensor) -> Tensor:
        return seen.shaped(numbers).to(seen.output.dtype)

    sources = [shaped(p) for p in (parts.data, parts.residual, parts.posterior, parts.growth)]
    kinds = ("input", "residual", "model", "growth")
    budget = Budget(("noise", *kinds[1:]), kinds, torch.stack(sources).flatten(2))
    return Prediction(
        seen.output,
        sources[0] + sources[1],
        sources[2] + sources[3],
        error=shaped(error),
        novelty=shaped(parts.novelty),
        joint_novelty=parts.joint.to(seen.output.dtype),
        details=Details(budget=budget),
    )


def _positive(each: Tensor) -> Tensor:
    """With 1 in place of 0, where nothing is divided but 0."""
    return torch.where(each > 0, each, 1.0)
