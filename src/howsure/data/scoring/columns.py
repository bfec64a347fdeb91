"""A prediction as named columns, one row for each input: what a file of scores holds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from howsure.prediction import Prediction
from howsure.values.trees import Parts, paths

Columns = dict[str, np.ndarray]


def columns_of(prediction: Prediction, rows: int, level: float | None) -> Columns:
    """Mean, std and both variances; intervals if asked; entropies, errors, novelty if there.

    The columns of a nested output have its path in their name: `mean.pose.0`.
    """
    named = {
        "mean": prediction.mean,
        "std": prediction.std,
        "data_var": prediction.data_var,
        "model_var": prediction.model_var,
    }
    if level is not None:
        named["low"], named["high"] = prediction.interval(level)
    if prediction.expected_entropy is not None:
        named["entropy"] = prediction.entropy
        named["mutual_information"] = prediction.mutual_information
    if isinstance(prediction.std_error, Tensor):
        named["std_error"] = prediction.std_error
    if prediction.novelty is not None:
        named["novelty"] = prediction.novelty
        named["joint_novelty"] = prediction.joint_novelty
    found = {
        f"{name}{path}": _as_array(tensor)
        for name, tree in named.items()
        for path, tensor in zip(paths(tree), Parts(tree).tensors, strict=True)
    }
    _check_rows(found, rows)
    return found


def _as_array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _check_rows(columns: Columns, rows: int) -> None:
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"`{name}` has shape {column.shape} for {rows} inputs; scores need one row of "
                "output for each input, so wrap the model to put the batch first."
            )


def flat_names(name: str, column: np.ndarray) -> list[str]:
    """The names of a column's numbers in a table: `mean`, or `mean_0`, `mean_1`, `mean_0_1`..."""
    shape = column.shape[1:]
    if int(np.prod(shape)) == 1:
        return [name]
    return [f"{name}_{'_'.join(map(str, index))}" for index in np.ndindex(shape)]


def joined(parts: list[Columns]) -> Columns:
    """The rows of all parts."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
