"""Parameters of noises: numbers and tensors, checked, aligned with an input, and as plain data."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.values.concrete import has_values

# A parameter of a noise. A number stays a number: it has no device and no dtype to convert.
Value = float | Tensor


def as_value(value: object, name: str) -> Value:
    """`value` as a float, or as a floating-point tensor that nobody else can change.

    A tensor that requires grad is kept as it is, so that a noise can be learned.
    """
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value if value.requires_grad else value.clone()
    try:
        # Lists in float64: each call converts them to the dtype of its input.
        return torch.from_numpy(np.array(value, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`{name}` is a {type(value).__name__}; give a number, a tensor or a list of numbers."
        ) from None


def check(name: str, value: Value, *, positive: bool = False, signed: bool = False) -> None:
    """Refuses NaN and infinity, negative numbers unless `signed`, and 0 if `positive`."""
    if isinstance(value, Tensor):
        if not has_values(value):
            return
        known = value.detach()
        finite, low = bool(known.isfinite().all()), float(known.min()) if known.numel() else 0.0
    else:
        finite, low = math.isfinite(value), value
    if not finite:
        raise ValueError(f"`{name}` contains NaN or infinity; give finite numbers.")
    if low < 0 and not signed:
        raise ValueError(f"`{name}` contains {low:g}; it cannot be negative, so give 0 or more.")
    if low == 0 and positive:
        raise ValueError(f"`{name}` contains 0; give positive numbers.")


def like(value: Value, x: Tensor) -> Tensor:
    """`value` as a tensor of the dtype and on the device of `x`."""
    if isinstance(value, Tensor):
        return value.to(x.dtype).to(x.device)  # in this order: not every device has float64
    return torch.full((), value, dtype=x.dtype, device=x.device)


def along(value: Value, x: Tensor, dim: int, name: str) -> Tensor:
    """`value` like `x`, with the numbers of a 1-D tensor laid along dimension `dim` of `x`.

    A number and a tensor of more dimensions broadcast as they are.
    """
    aligned = like(value, x)
    if aligned.dim() != 1 or aligned.numel() == 1:
        return aligned
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != len(aligned):
        raise ValueError(
            f"`{name}` has {len(aligned)} numbers for dimension {dim} of an input of shape "
            f"{tuple(x.shape)}; give one number per channel and `dim=`, the dimension that counts "
            "the channels (1 in a batch of images, 0 in a single image)."
        )
    shape = [1] * x.dim()
    shape[dim] = -1
    return aligned.reshape(shape)


def encode(value: Any) -> Any:
    """`value` as plain data for JSON: tensors as lists with a dtype, noises as their config."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": value.detach().cpu().tolist(), "dtype": dtype}
    if hasattr(value, "to_config"):
        return value.to_config()
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode_tensor(config: dict[str, object]) -> Tensor:
    """The tensor that `encode` wrote."""
    dtype = getattr(torch, str(config.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"The config names the dtype {config.get('dtype')!r}, which torch does not have; "
            "was it written by `to_config`?"
        )
    return torch.tensor(config["tensor"], dtype=dtype)
