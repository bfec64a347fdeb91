"""What plots accept: tensors, arrays or numbers, predictions of one method or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.moments.value import Moments
from howsure.prediction import Prediction

Array = NDArray[np.float64]
Predicted = Prediction | Moments | tuple[object, object]  # the last: mean and variance


def tensor(name: str, value: object) -> Tensor:
    """The value as a float64 tensor on the CPU, without gradient; anything but NaN or infinite."""
    if isinstance(value, Mapping):
        raise TypeError(
            f"`{name}` is a dict with the keys {list(value)}; choose one, for example "
            f"`{name}[{next(iter(value), None)!r}]`."
        )
    try:
        if not isinstance(value, Tensor):
            value = torch.from_numpy(np.array(value, dtype=np.float64))
        result = value.detach().cpu().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` is a {type(value).__name__} and does not become numbers ({error}); pass a "
            "tensor, an array or a list of numbers."
        ) from error
    if bad := int((~result.isfinite()).sum()):
        raise ValueError(
            f"`{name}` is NaN or infinite in {bad} of {result.numel()} entries; leave them out."
        )
    return result


def array(name: str, value: object, shape: str) -> Array:
    """The value as an array of the shape that `shape` writes, such as "(n, 2)".

    Numbers in `shape` must match, letters match any size but 0.
    """
    result = tensor(name, value)
    wanted = shape.strip("()").replace(" ", "").rstrip(",").split(",")
    fits = len(wanted) == result.dim() and all(
        size == int(want) if want.isdigit() else size > 0
        for want, size in zip(wanted, result.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"`{name}` has shape {tuple(result.shape)}; give {shape}.")
    return result.numpy()


def same_length(**columns: Sized | None) -> None:
    """Refuses columns of different length."""
    (first, size), *others = ((name, len(x)) for name, x in columns.items() if x is not None)
    for name, other in others:
        if other != size:
            raise ValueError(
                f"`{first}` has {size} entries and `{name}` has {other}; give one for each."
            )


def variance(name: str, value: object) -> Tensor:
    """The value as a tensor without negative entries."""
    result = tensor(name, value)
    if bool((result < 0).any()):
        raise ValueError(f"`{name}` is negative somewhere; was a log variance passed?")
    return result


def by_name(value: object) -> dict[str, Any]:
    """Values of several methods by name; a single value has the name ""."""
    if not isinstance(value, Mapping):
        return {"": value}
    if not value:
        raise ValueError("There is no method to plot: the dict is empty.")
    return {str(name): entry for name, entry in value.items()}


def mean_and_var(predicted: object) -> tuple[Tensor, Tensor]:
    """Mean and total variance of a prediction, of equal shape."""
    if isinstance(predicted, Prediction):
        pair = predicted.mean, predicted.total_var
    elif isinstance(predicted, Moments):
        pair = predicted.mean, predicted.var
    elif isinstance(predicted, (tuple, list)) and len(predicted) == 2:
        pair = predicted
    else:
        raise TypeError(
            f"A prediction was given as {type(predicted).__name__}; pass what `Uncertain` or "
            "`propagate` returns, or the pair `(mean, var)`; for several methods a dict of these."
        )
    mean, var = tensor("mean", pair[0]), variance("var", pair[1])
    if mean.shape != var.shape:
        raise ValueError(
            f"`mean` has shape {tuple(mean.shape)} and `var` has shape {tuple(var.shape)}; make "
            "them equal."
        )
    return mean, var


def titled(name: str, words: str) -> str:
    """A label: the method's name if it has one, then the words."""
    return f"{name}: {words}" if name else words


def thinned(*arrays: NDArray[Any], most: int = 1000) -> tuple[NDArray[Any], ...]:
    """Evenly spaced entries where there are more than a plot can show, first and last included."""
    count = len(arrays[0])
    if count <= most:
        return arrays
    kept = np.linspace(0, count - 1, most).round().astype(int)
    return tuple(x[kept] for x in arrays)
