"""From samples to a prediction: total variance = mean of variances + variance of means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.gradients.calls import Calls
from howsure.methods.passes import Pass
from howsure.moments.value import variance_dtype
from howsure.prediction import Prediction, entropy
from howsure.setup import Setup


def prediction(
    setup: Setup,
    run: Pass,
    means: Sequence[Tensor],
    data_vars: Sequence[Tensor],
    model_vars: Sequence[Tensor],
    *,
    samples: Tensor | None = None,
) -> Prediction:
    """The prediction in the structure of the model's output.

    `samples` are class probabilities per Monte-Carlo sample, for the expected entropy.
    """
    assert run.parts is not None
    noisy = [var + setup.residual_var for var in data_vars]
    if setup.task == "regression":
        variances = [run.parts.varied(each) for each in (noisy, model_vars)]
        return Prediction(run.parts.filled(means), *variances, notes=run.notes)
    logits = Prediction(means[1], noisy[1], model_vars[1], run.notes)
    per_sample = means[0][None] if samples is None else samples
    expected = entropy(per_sample, dim=2 if per_sample.dim() > 2 else 1).mean(0)
    return Prediction(means[0], noisy[0], model_vars[0], run.notes, logits, expected)


def shaped(calls: Calls, flat: Tensor) -> list[Tensor]:  # (rows, outputs)
    """Flat outputs in the shapes of the model's, each in its own type."""
    assert calls.parts is not None
    pairs = zip(calls.shaped(flat), calls.parts.tensors, strict=True)
    return [each.to(own.dtype) for each, own in pairs]


def shaped_variances(calls: Calls, flat: Tensor) -> list[Tensor]:
    """The same for variances and errors: those of half precision are kept in float32."""
    assert calls.parts is not None
    pairs = zip(calls.shaped(flat), calls.parts.tensors, strict=True)
    return [each.to(variance_dtype(own.dtype)) for each, own in pairs]


def spread(setup: Setup, outputs: Tensor) -> Tensor:
    """Variance over the samples in front, divided by T as in the paper unless `unbiased`."""
    wide = outputs.to(variance_dtype(outputs.dtype))
    return wide.var(0, correction=1 if setup.unbiased else 0)


def zeros_like_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """No variance."""
    return [torch.zeros_like(each, dtype=variance_dtype(each.dtype)) for each in tensors]
