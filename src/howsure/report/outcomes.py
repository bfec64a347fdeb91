"""Predictions beside the truth, in the shape in which a report looks at them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.fit.objectives import check_targets
from howsure.prediction import Prediction, class_dim, entropy
from howsure.trees import TensorTree

# Up to so many outputs can be looked at one by one.
_SEPARATE = 4


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
    def inputs(self) -> int:
        """The number of inputs."""
        return self.mean.shape[0]

    @property
    def error(self) -> Tensor:
        """|target - mean| of a regression."""
        return (self.target - self.mean).abs()

    def output(self, index: int) -> Outcome:
        """One output of a regression."""
        return replace(
            self, **{name: getattr(self, name)[:, index : index + 1] for name in _FIELDS}
        )


_FIELDS = ("mean", "data_var", "model_var", "target")


def outcome_of(prediction: Prediction, target: Tensor, task: str) -> Outcome:
    """The outcome of one prediction; one clear sentence if it cannot be judged."""
    check_targets(prediction, target, "gaussian" if task == "regression" else "categorical")
    mean, data_var, model_var = (
        _only_tensor(getattr(prediction, name)) for name in ("mean", "data_var", "model_var")
    )
    data_var, model_var = (torch.as_tensor(v).expand_as(mean) for v in (data_var, model_var))
    for name, value in (("mean", mean), ("variance", data_var + model_var)):
        if not bool(value.isfinite().all()):
            raise ValueError(f"The predicted {name} contains NaN or infinity; nothing can be said.")
    if task == "regression":
        mean, data_var, model_var = (_as_outputs(t) for t in (mean, data_var, model_var))
        nu = prediction.degrees_of_freedom
        return Outcome(mean, data_var, model_var, _as_outputs(target), nu)
    entropies = prediction.expected_entropy
    if entropies is not None and entropies.shape == mean.shape:  # "no" and "yes" of every element
        classes = torch.stack([1 - mean, mean], 1)
        data_var, model_var = (torch.stack([var, var], 1) for var in (data_var, model_var))
    else:
        axis = class_dim(mean)
        classes, data_var, model_var = (t.movedim(axis, 1) for t in (mean, data_var, model_var))
    labels = target.detach().cpu().reshape(len(target), -1).long()
    classes, data_var, model_var = (_as_outputs(t) for t in (classes, data_var, model_var))
    return Outcome(classes, data_var, model_var, labels)


def separate_outputs(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The outcomes of all outputs together and, if there are a few, of each, by level."""
    count = outcomes[0].mean.shape[1]
    if not 1 < count <= _SEPARATE:
        return [[outcome] for outcome in outcomes]
    return [[outcome, *(outcome.output(k) for k in range(count))] for outcome in outcomes]


def output_choices(outcome: Outcome, names: Sequence[str]) -> tuple[str, ...]:
    """What can be chosen: all outputs, and each if there are a few; as `separate_outputs`."""
    few = 1 < outcome.mean.shape[1] <= _SEPARATE
    return ("all outputs", *names) if few else ("all outputs",)


def _as_outputs(tensor: Tensor) -> Tensor:  # (inputs, outputs, elements)
    tensor = tensor.detach().cpu().double()
    if tensor.dim() == 1:
        tensor = tensor.unsqueeze(1)
    return tensor.reshape(tensor.shape[0], tensor.shape[1], -1)


def _only_tensor(tree: object) -> Any:
    tensors = TensorTree(tree).tensors
    return tensors[0] if tensors else tree


@dataclass(frozen=True, eq=False)
class Decisions:
    """Every decision of an outcome: one for each input, or for each pixel of it."""

    probabilities: Tensor  # (n, classes)
    target: Tensor  # (n,)
    confidence: Tensor  # (n,), probability of the predicted class
    choice: Tensor  # (n,)
    std: Tensor  # (n,), of that probability
    entropy: Tensor  # (n,)

    @property
    def wrong(self) -> Tensor:
        """1 where the predicted class is not the target."""
        return (self.choice != self.target).double()


def decisions(outcome: Outcome) -> Decisions:
    """The decisions, elements of all inputs together."""
    rows, var = (t.movedim(1, -1).flatten(0, 1) for t in (outcome.mean, outcome.var))
    confidence, choice = rows.max(1)
    std = var.gather(1, choice.unsqueeze(1)).squeeze(1).sqrt()
    return Decisions(rows, outcome.target.flatten(), confidence, choice, std, entropy(rows))
