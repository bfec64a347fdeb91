"""Class probabilities of uncertain logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import find
from howsure.moments.value import Moments
from howsure.prediction import Prediction, entropy


def class_probabilities(logits: Prediction) -> Prediction:
    """The softmax of independent Gaussian logits, `(batch, classes, ...)`, as a prediction.

    Mean and total variance are those of the softmax rule at the logits' total variance; the total
    is divided as the rule's variances of the data and of the model part alone. The expected entropy
    is second order in the model variance: H(mean) - 1/2 sum model_var / mean.

    Logits without variances go in as `Prediction(logits, zeros, zeros)`.
    """
    total = softmax_of(logits.mean, logits.total_var)
    data, model = (softmax_of(logits.mean, var).var for var in (logits.data_var, logits.model_var))
    parts = data + model
    share = torch.where(parts > 0, data / torch.where(parts > 0, parts, 1), 0.5)
    data_var, model_var = total.var * share, total.var * (1 - share)
    whole = entropy(total.mean, dim=1)
    smallest = torch.finfo(total.mean.dtype).tiny  # protects 0 / 0 where a class is impossible
    spread = (model_var / total.mean.clamp(min=smallest)).sum(1)
    expected = torch.minimum((whole - 0.5 * spread).clamp(min=0), whole)
    return Prediction(total.mean, data_var, model_var, logits.notes, logits, expected)


def softmax_of(mean: Tensor, var: Tensor) -> Moments:
    """Moments of the softmax along dim 1; the plain one where there is no variance."""
    if not bool((var > 0).any()):
        return Moments(torch.softmax(mean, 1), torch.zeros_like(var))
    rule = find(F.softmax)
    assert rule is not None
    return rule(Moments(mean, var), 1)
