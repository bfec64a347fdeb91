"""From samples to a prediction: total variance = mean of variances + variance of means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.methods.passes import Pass
from howsure.prediction import Prediction, entropy
from howsure.setup import Setup
from howsure.values.trees import map_leaves


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
        fill = run.parts.filled
        variances = [_filled_zero(fill(each)) for each in (noisy, model_vars)]
        return Prediction(fill(means), *variances, notes=run.notes)
    logits = Prediction(means[1], noisy[1], model_vars[1], run.notes)
    per_sample = means[0][None] if samples is None else samples
    expected = entropy(per_sample, dim=2 if per_sample.dim() > 2 else 1).mean(0)
    return Prediction(means[0], noisy[0], model_vars[0], run.notes, logits, expected)


def _filled_zero(tree: object) -> object:
    """What is not a floating-point tensor has no variance."""
    return map_leaves(lambda leaf: leaf if isinstance(leaf, Tensor) else 0.0, tree)


def spread(setup: Setup, outputs: Tensor) -> Tensor:
    """Variance over the samples in front, divided by T as in the paper unless `unbiased`."""
    return outputs.var(0, correction=1 if setup.unbiased else 0)


def zeros_like_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """No variance."""
    return [torch.zeros_like(tensor) for tensor in tensors]
