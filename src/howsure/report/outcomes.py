"""Predictions beside the truth, in the shape in which a report looks at them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.fit.likelihood import check_targets
from howsure.prediction import Prediction, class_dim, entropy
from howsure.report import readings
from howsure.report.readings import metric, percent
from howsure.report.values import Metric
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False)
class Decisions:
    """Every decision of a classification: one for each input, or for each pixel of it."""

    probabilities: Tensor  # (n, classes)
    var: Tensor  # (n, classes)
    target: Tensor  # (n,)
    confidence: Tensor  # (n,), probability of the predicted class
    choice: Tensor  # (n,)
    std: Tensor  # (n,), of that probability
    entropy: Tensor  # (n,)

    @property
    def wrong(self) -> Tensor:
        """1 where the predicted class is not the target."""
        return (self.choice != self.target).double()


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predictions and targets of one noise level, in float64.

    For regression (inputs, outputs, elements), for classification probabilities of shape (inputs,
    classes, elements) and targets of shape (inputs, elements). Elements are what a dense output
    has beyond its channels, such as pixels; else there is one. Errors of a regression follow a
    Student-t with these degrees of freedom.
    """

    mean: Tensor
    data_var: Tensor
    model_var: Tensor
    target: Tensor
    degrees_of_freedom: float = math.inf

    @property
    def var(self) -> Tensor:
        """The total variance."""
        return self.data_var + self.model_var

    @property
    def student(self) -> dict[str, float]:
        """What metrics need to know of the distribution of the errors."""
        return {"degrees_of_freedom": self.degrees_of_freedom}

    @property
    def error(self) -> Tensor:
        """|target - mean| of a regression."""
        return (self.target - self.mean).abs()

    def output(self, index: int) -> Outcome:
        """One output of a regression."""
        parts = {name: getattr(self, name) for name in ("mean", "data_var", "model_var", "target")}
        return replace(self, **{name: part[:, [index]] for name, part in parts.items()})

    @functools.cached_property
    def decisions(self) -> Decisions:
        """The decisions of a classification, elements of all inputs together."""
        rows, var = (t.movedim(1, -1).flatten(0, 1) for t in (self.mean, self.var))
        confidence, choice = rows.max(1)
        std = var.gather(1, choice.unsqueeze(1)).squeeze(1).sqrt()
        return Decisions(rows, var, self.target.flatten(), confidence, choice, std, entropy(rows))


def outcome_of(prediction: Prediction, target: Tensor, task: str) -> Outcome:
    """The outcome of one prediction; one clear sentence if it cannot be judged."""
    is_regression = task == "regression"
    check_targets(prediction, target, "gaussian" if is_regression else "categorical")
    (mean,) = TensorTree(prediction.mean).tensors
    data_var, model_var = (
        torch.as_tensor((TensorTree(part).tensors or [part])[0]).expand_as(mean)
        for part in (prediction.data_var, prediction.model_var)
    )
    for name, value in (("mean", mean), ("variance", data_var + model_var)):
        if not bool(value.isfinite().all()):
            raise ValueError(f"The predicted {name} contains NaN or infinity; nothing can be said.")
    if is_regression:
        mean, data_var, model_var, target = map(_as_outputs, (mean, data_var, model_var, target))
        return Outcome(mean, data_var, model_var, target, prediction.degrees_of_freedom)
    parts = (mean, data_var, model_var)
    entropies = prediction.expected_entropy
    if entropies is not None and entropies.shape == mean.shape:  # "no" and "yes" of every element
        parts = (torch.stack(pair, 1) for pair in zip((1 - mean, *parts[1:]), parts, strict=True))
    else:
        parts = (part.movedim(class_dim(mean), 1) for part in parts)
    classes, data_var, model_var = map(_as_outputs, parts)
    labels = target.detach().cpu().reshape(len(target), -1).long()
    return Outcome(classes, data_var, model_var, labels)


def _as_outputs(tensor: Tensor) -> Tensor:  # (inputs, outputs, elements)
    tensor = tensor.detach().cpu().double()
    if tensor.dim() == 1:
        tensor = tensor.unsqueeze(1)
    return tensor.reshape(tensor.shape[0], tensor.shape[1], -1)


def data_share(outcome: Outcome) -> Metric:
    """The sensor's part of the variance."""
    data, model = (float(part.sum()) for part in (outcome.data_var, outcome.model_var))

    def share() -> float:
        if not data + model:
            raise ValueError("the variance is 0.")
        # A part that is there counts, however small: only 0 is rounded to none.
        return min(data / (data + model), math.nextafter(1.0, 0.0) if model > 0 else 1.0)

    return metric("Variance from the sensor", share, readings.sources, form=percent)
