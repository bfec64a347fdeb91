"""Predictions and targets of all batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.calibrate.calibrated import refuse_calibrated_intervals
from howsure.calibrate.held_out import one_tensor
from howsure.fit.validation_data import pairs_of
from howsure.prediction import Prediction
from howsure.trees import as_call

Labels = Tensor | Sequence[int] | Sequence[str]


@torch.no_grad()
def collected(
    sure: Callable[..., Prediction],
    loader: Iterable[object],
    groups: Labels | Callable[[Any], Labels] | None = None,
) -> tuple[Prediction, Tensor, Labels | None]:
    """The predictions, targets and group labels of all batches, joined."""
    predictions: list[Prediction] = []
    targets: list[Tensor] = []
    labels: list[Any] = []
    for inputs, target in pairs_of(loader):
        args, kwargs = as_call(inputs)
        predictions.append(sure(*args, **kwargs))
        targets.append(target)
        if callable(groups):
            labels.extend(_listed(groups(inputs)))
    return joined(predictions), torch.cat(targets), labels if callable(groups) else groups


def joined(predictions: Sequence[Prediction]) -> Prediction:
    """One prediction with the mean and the variances of all, as plain tensors."""
    for prediction in predictions:
        refuse_calibrated_intervals(prediction)
        if len(predictions) > 1 and prediction.batch_dim:
            raise ValueError(
                "Calibration joins batches on the first axis, and these have their rows on axis "
                f"{prediction.batch_dim}; give all held-out data as one batch."
            )
    logits = [prediction.logits for prediction in predictions if prediction.logits is not None]
    return Prediction(
        torch.cat([one_tensor(prediction.mean, "mean") for prediction in predictions]),
        torch.cat([one_tensor(prediction.data_var, "data_var") for prediction in predictions]),
        torch.cat([one_tensor(prediction.model_var, "model_var") for prediction in predictions]),
        logits=joined(logits) if logits else None,
    )


def _listed(labels: Labels) -> list[object]:
    return labels.tolist() if isinstance(labels, Tensor) else list(labels)
