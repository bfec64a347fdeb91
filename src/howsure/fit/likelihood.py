"""The likelihood of held-out targets, and the residual variance that is best for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.line_search import log_minimum
from howsure.prediction import Prediction, class_dim
from howsure.student import student_nll
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False)
class Scored:
    """Squared errors and variances of predictions; or log-probabilities, which have no variance.

    Attributes:
        error: Squared errors, (inputs, ...), or negative log-probabilities, (inputs,).
        var: Total variances, or `None` for a categorical likelihood.
    """

    error: Tensor
    var: Tensor | None

    @classmethod
    def of(cls, prediction: Prediction, target: Tensor, objective: str, floor: float) -> Scored:
        """A batch under one of the likelihoods; variances below the floor are raised to it.

        - "gaussian": regression, the error of every output against its total variance.
        - "one_hot": classes as in the paper, a Gaussian around the one-hot label of every class.
        - "categorical": -log of the predicted probability of the label.
        """
        check_targets(prediction, target, objective)
        mean, var = _one_tensor(prediction)
        if objective == "categorical":
            return cls(-torch.log(_probability_of(target, prediction)), None)
        if objective == "one_hot" and _is_elementwise(prediction):
            target = target.reshape(mean.shape).to(mean.dtype)
        elif objective == "one_hot":
            axis = class_dim(mean)
            label = F.one_hot(target.long(), mean.shape[axis]).to(mean.dtype)
            target = label.movedim(-1, axis)
        return cls((target - mean).square(), var.clamp(min=floor))

    @staticmethod
    def joined(parts: Sequence[Scored]) -> Scored:
        """All inputs of several batches."""
        variances = [part.var for part in parts if part.var is not None]
        error = torch.cat([part.error for part in parts])
        return Scored(error, torch.cat(variances) if variances else None)

    def nll(self, residual_var: float = 0.0) -> Tensor:
        """1/2 log s + error / (2 s), s = var + residual_var: Eq. 12 without the constant."""
        if self.var is None:
            return self.error
        return student_nll(self.error, self.var + residual_var, math.inf)


def fitted_residual_var(scored: Scored) -> float:
    """The residual variance of least mean NLL; 0 if no positive one is better."""
    error, var = scored.error.double(), scored.var
    scale = float(error.mean())
    if var is None or scale == 0:
        return 0.0
    precise = Scored(error, var.double())

    def cost(residual_var: Tensor) -> Tensor:  # (1,)
        return precise.nll(float(residual_var)).mean()[None]

    residual_var = log_minimum(cost, 1e-6 * scale, 1e2 * scale)
    # Without any variance the likelihood is not defined, which is worse than all else.
    at_zero = cost(torch.zeros(1))
    at_zero = torch.where(at_zero.isfinite(), at_zero, torch.inf)
    return float(residual_var) if bool(cost(residual_var) < at_zero) else 0.0


def _one_tensor(prediction: Prediction) -> tuple[Tensor, Tensor]:
    means, variances = TensorTree(prediction.mean).tensors, TensorTree(prediction.total_var).tensors
    if len(means) != 1:
        raise ValueError(
            f"The model has {len(means)} outputs; wrap it so that it returns the one to fit on."
        )
    return means[0], variances[0]


def _is_elementwise(prediction: Prediction) -> bool:
    """Whether every probability is that of a label of its own."""
    mean, entropies = prediction.mean, prediction.expected_entropy
    return entropies is not None and entropies.shape == mean.shape


def _probability_of(target: Tensor, prediction: Prediction) -> Tensor:
    mean, _ = _one_tensor(prediction)
    if _is_elementwise(prediction):
        chosen = torch.where(target.reshape(mean.shape) > 0, mean, 1 - mean)
    else:
        axis = class_dim(mean)
        chosen = mean.gather(axis, target.long().unsqueeze(axis)).squeeze(axis)
    return chosen.clamp(min=torch.finfo(mean.dtype).tiny)  # whose logarithm is finite


def check_targets(prediction: Prediction, target: Tensor, objective: str) -> None:
    """One clear sentence if targets do not fit the predictions."""
    mean, _ = _one_tensor(prediction)
    classes, expected = 2, mean.shape
    if objective != "gaussian" and not _is_elementwise(prediction):
        axis = class_dim(mean)
        classes = mean.shape[axis]
        expected = torch.Size(size for dim, size in enumerate(mean.shape) if dim != axis)
    elif objective != "gaussian" and target.numel() == mean.numel():
        expected = target.shape  # a flat logit, or one along an axis of its own
    if target.shape != expected:
        raise ValueError(
            f"The targets have shape {tuple(target.shape)}; predictions of shape "
            f"{tuple(mean.shape)} need targets of shape {tuple(expected)}."
        )
    if target.dtype.is_floating_point and not bool(torch.isfinite(target).all()):
        raise ValueError("The targets contain NaN or infinity; leave those inputs out.")
    if objective != "gaussian":
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"The labels run from {low} to {high}, but the model has {classes} classes."
            )


def check_outputs(var: Tensor | None) -> None:
    """One clear sentence if an output has no variance for any input; of shape (inputs, ...)."""
    if var is None:
        return
    is_dead = (var.reshape(len(var), -1) == 0).all(0)
    if bool(is_dead.all()):
        raise ValueError(
            "The total variance is 0 at every rate, where the likelihood is undefined; give the "
            "sensor's noise or set `fit_residual_var=True`."
        )
    dead, live = (which.nonzero().flatten().tolist() for which in (is_dead, ~is_dead))
    if dead:
        named = ", ".join(map(str, dead[:5])) + (", ..." if len(dead) > 5 else "")
        kept = live if len(live) <= 5 else "[...]"
        raise ValueError(
            f"Output {named} of {len(is_dead)} (counted from 0) has no variance: neither noise nor "
            "dropout changes it. Leave it out, also of the targets (`output=lambda y: y[:, "
            f"{kept}]`), or set `fit_residual_var=True`."
        )
