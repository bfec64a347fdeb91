"""Errors and variances of held-out predictions, checked once for all calibrators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.calibrate.calibrated import refuse_calibrated_intervals
from howsure.prediction import Prediction
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Errors (target - mean) and total variances, (n, ...), in float64 on the CPU."""

    error: Tensor
    var: Tensor

    def by_output(self, per_output: bool) -> HeldOut:
        """The same as (k, m): a row for each of the k outputs at dim 1, or one row for all."""
        if not per_output:
            return HeldOut(self.error.reshape(1, -1), self.var.reshape(1, -1))
        if self.error.dim() < 2:
            raise ValueError(
                "`per_output=True` needs predictions of shape (batch, outputs, ...), not "
                f"{tuple(self.error.shape)}."
            )
        return HeldOut(*(x.movedim(1, 0).flatten(1) for x in (self.error, self.var)))


def held_out(prediction: Prediction, target: Tensor, *, least: int = 2) -> HeldOut:
    """The errors and variances, or one clear sentence on what is wrong with them.

    Class labels of a classification become one-hot, as in the paper's likelihood.
    """
    check_new(prediction)
    mean, var = (tensor.detach().cpu().double() for tensor in mean_and_var(prediction))
    target = _aligned(prediction, mean, torch.as_tensor(target).detach().cpu())
    if len(mean) < least:
        raise ValueError(f"There are {len(mean)} held-out points; give at least {least}.")
    for name, tensor in (("mean", mean), ("variance", var), ("target", target)):
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"The held-out {name} contains NaN or infinity; leave those inputs out."
            )
    if bool((var < 0).any()):
        raise ValueError(
            f"The smallest held-out variance is {float(var.min()):.3g}; variances must not be "
            "negative."
        )
    return HeldOut(target - mean, var)


def mean_and_var(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """The one tensor of the mean and of the total variance, of equal shape."""
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"A calibrator takes a `Prediction`, not a {type(prediction).__name__}; make one with "
            "`Prediction(mean, data_var, model_var)`."
        )
    mean = one_tensor(prediction.mean, "mean")
    data, model = (one_tensor(getattr(prediction, n), n) for n in ("data_var", "model_var"))
    if not mean.shape == data.shape == model.shape:
        raise ValueError(
            f"The mean has shape {tuple(mean.shape)}, `data_var` {tuple(data.shape)} and "
            f"`model_var` {tuple(model.shape)}; they must be equal."
        )
    if mean.dim() == 0:
        raise ValueError("The prediction has no batch axis; give shape (batch, ...).")
    return mean, data + model


def one_tensor(tree: object, name: str) -> Tensor:
    """The one floating-point tensor of a nested output."""
    tensors = TensorTree(tree).tensors
    if len(tensors) != 1:
        raise ValueError(
            f"`{name}` has {len(tensors)} floating-point tensors; a calibrator takes one. For a "
            "model with several outputs make a `Prediction` of each, with a calibrator of its own."
        )
    return tensors[0]


def check_new(prediction: Prediction) -> None:
    """An error for what is no plain prediction."""
    mean_and_var(prediction)
    refuse_calibrated_intervals(prediction)


def check_labels(scores: Tensor, target: Tensor) -> Tensor:
    """Class labels (batch, ...) as int64, for scores (batch, classes, ...)."""
    target = torch.as_tensor(target).detach().cpu()
    expected = scores.shape[:1] + scores.shape[2:]
    if scores.dim() < 2 or target.shape != expected:
        raise ValueError(
            f"The labels have shape {tuple(target.shape)}; predictions of shape "
            f"{tuple(scores.shape)} (batch, classes, ...) need {tuple(expected)}."
        )
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        raise TypeError(f"The labels must be whole numbers, not {target.dtype}.")
    if target.numel() == 0:
        raise ValueError("There are no held-out points to fit on.")
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= scores.shape[1]:
        raise ValueError(
            f"The labels run from {low} to {high}, but there are {scores.shape[1]} classes."
        )
    return target.long()


def _aligned(prediction: Prediction, mean: Tensor, target: Tensor) -> Tensor:
    if prediction.logits is not None and not target.dtype.is_floating_point:
        labels = check_labels(mean, target)
        return F.one_hot(labels, mean.shape[1]).movedim(-1, 1).double()
    if target.shape != mean.shape:
        raise ValueError(
            f"The targets have shape {tuple(target.shape)}; predictions of shape "
            f"{tuple(mean.shape)} need the same."
        )
    return target.double()
