"""Held-out predictions and their targets as tensors, checked once for all calibrators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.calibrate.base import check_uncalibrated
from howsure.prediction import Prediction
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Errors (target - mean) and total variances, (n, ...), in float64 on the CPU."""

    error: Tensor
    var: Tensor

    @classmethod
    def of(cls, prediction: Prediction, target: Tensor, *, least: int = 2) -> HeldOut:
        """The errors and variances, or one clear sentence on what is wrong with them.

        Class labels of a classification become one-hot, as in the paper's likelihood.
        """
        check_uncalibrated(prediction)
        mean, var = (tensor.detach().cpu().double() for tensor in mean_and_var(prediction))
        target = torch.as_tensor(target).detach().cpu()
        if prediction.logits is not None and not target.dtype.is_floating_point:
            labels = check_labels(mean, target)
            target = F.one_hot(labels, mean.shape[1]).movedim(-1, 1)
        if target.shape != mean.shape:
            raise ValueError(
                f"The targets have shape {tuple(target.shape)}; predictions of shape "
                f"{tuple(mean.shape)} need the same."
            )
        if len(mean) < least:
            raise ValueError(f"There are {len(mean)} held-out points; give at least {least}.")
        target = target.double()
        for name, tensor in (("mean", mean), ("variance", var), ("target", target)):
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"The held-out {name} contains NaN or infinity; leave those inputs out."
                )
        if bool((var < 0).any()):
            raise ValueError(
                f"The smallest held-out variance is {float(var.min()):.3g}; variances must not be "
                "negative."
            )
        return cls(target - mean, var)

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

    def check_variances(self, reason: str) -> None:
        """An error if any variance is 0."""
        if zeros := int((self.var == 0).sum()):
            raise ValueError(f"{zeros} of {self.var.numel()} held-out variances are 0, {reason}")

    def check_errors(self) -> None:
        """An error if all errors of an output are 0; rows are outputs."""
        if bool((self.error == 0).all(1).any()):
            raise ValueError("All held-out errors of an output are 0; are the targets predictions?")

    @property
    def scores(self) -> Tensor:
        """|error| / std; with a std of 0 a right prediction scores 0 and a wrong one infinity."""
        scores = self.error.abs() / self.var.sqrt()
        return torch.where(self.error == 0, torch.zeros_like(scores), scores)


def mean_and_var(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """The one tensor of the mean and of the total variance, of equal shape."""
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"A calibrator takes a `Prediction`, not a {type(prediction).__name__}; make one with "
            "`Prediction(mean, data_var, model_var)`."
        )
    mean, data, model = (one_tensor(prediction, n) for n in ("mean", "data_var", "model_var"))
    if not mean.shape == data.shape == model.shape:
        raise ValueError(
            f"The mean has shape {tuple(mean.shape)}, `data_var` {tuple(data.shape)} and "
            f"`model_var` {tuple(model.shape)}; they must be equal."
        )
    if mean.dim() == 0:
        raise ValueError("The prediction has no batch axis; give shape (batch, ...).")
    return mean, data + model


def one_tensor(prediction: Prediction, name: str) -> Tensor:
    """The one floating-point tensor of a field of a prediction."""
    tensors = TensorTree(getattr(prediction, name)).tensors
    if len(tensors) != 1:
        raise ValueError(
            f"`{name}` has {len(tensors)} floating-point tensors; a calibrator takes one. For a "
            "model with several outputs make a `Prediction` of each, with a calibrator of its own."
        )
    return tensors[0]


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


def align_outputs(mean: Tensor, value: Tensor) -> Tensor:
    """A number, or one for each output, in a shape that goes with (batch, outputs, ...)."""
    value = value.to(mean)
    if value.dim() == 0:
        return value
    if mean.dim() < 2 or mean.shape[1] != len(value):
        raise ValueError(
            f"The calibrator was fitted for {len(value)} outputs; this prediction has shape "
            f"{tuple(mean.shape)}."
        )
    return value.reshape(-1, *[1] * (mean.dim() - 2))


def around(prediction: Prediction, reach: Tensor) -> tuple[object, object]:
    """The interval mean -+ reach * std, in the structure of the mean.

    An infinite reach covers everything, also where the std is 0.
    """
    mean, var = mean_and_var(prediction)
    width = torch.where(torch.isinf(reach), reach, reach * var.sqrt())
    rebuild = TensorTree(prediction.mean).unflatten
    return rebuild([mean - width]), rebuild([mean + width])
