"""What noises are made of: parameters that fit an input, roots of covariances, plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.trees import has_values

# A parameter of a noise. A number stays a number: it has no device and no dtype to convert.
Value = float | Tensor
# Draws whose inner products say how many dimensions a noise has.
_DRAWS = 64


def as_value(value: object, name: str) -> Value:
    """`value` as a float, or as a floating-point tensor that nobody else can change.

    A tensor that requires grad is kept as it is, so that a noise can be learned.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value if value.requires_grad else value.clone()
    try:
        if isinstance(value, bool):
            raise TypeError
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


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype in which variances are computed; an error if it cannot carry noise."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"The input of a noise is {found}, and only floating-point tensors can carry "
            "noise; convert it as the model's preprocessing does."
        )
    return x.to(torch.promote_types(x.dtype, torch.float32))


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


def as_field(number: float, types: tuple[object, ...]) -> float | int | None:
    """The number as a field of these types takes it; `None` if it does not."""
    if float in types:
        return number
    return int(number) if int in types and float(number).is_integer() else None


def broadcasts(var: Tensor, x: Tensor) -> bool:
    """Whether a variance fits an input."""
    pairs = zip(reversed(var.shape), reversed(x.shape), strict=False)
    return var.dim() <= x.dim() and all(size in (1, whole) for size, whole in pairs)


@dataclass(frozen=True, eq=False)
class Root:
    """The noise of one input as S z, with z standard normal.

    Attributes:
        shape: Shape of z for one row.
        apply: S: takes z of shape (points, rows, *shape) and the rows (a slice or indices) that it
            is for, and gives the noise, (points, rows, *input's shape).
        is_diagonal: Whether each number of z is the noise of one element, so that the variance of
            an output can be split by element.
    """

    shape: tuple[int, ...]
    apply: Callable[[Tensor, slice | Tensor], Tensor]
    is_diagonal: bool = False

    def transposed(self, noise: Tensor, rows: slice | Tensor) -> Tensor:
        """S' g, by differentiating <S z, g>; (points, rows, *shape)."""
        with torch.enable_grad():
            z = noise.new_zeros(*noise.shape[:2], *self.shape).requires_grad_()
            return torch.autograd.grad(self.apply(z, rows), z, noise)[0]

    def dimensions(self, x: Tensor) -> float:
        """How many independent directions of equal size the first row's noise is worth.

        (Sum of variances)^2 / sum of squared covariances, 1 for an offset and 1.5 for a random
        walk; by draws, within some 20 %. Infinite without any noise.
        """
        shape, generator = (_DRAWS, 1, *self.shape), torch.Generator().manual_seed(0)
        z = torch.randn(shape, generator=generator).to(x.device, wide(x).dtype)
        noise = self.apply(z, slice(0, 1)).flatten(1)
        # Of noises that share nothing, E <a, a> and E <a, b>^2.
        products = noise @ noise.mT
        own = products.diagonal()
        squares = (products.square().sum() - own.square().sum()) / (_DRAWS * (_DRAWS - 1))
        return float(own.mean().square() / squares) if bool(squares > 0) else math.inf

    def times(self, std: Tensor) -> Root:  # (rows, *input's shape)
        """The root of the noise multiplied by `std`, element by element."""
        return Root(self.shape, lambda z, rows: std[rows] * self.apply(z, rows))

    def of_whole(self, rows: int, batch_dim: int) -> Root:
        """The root of all rows taken as one input, each with noise of its own."""

        def apply(z: Tensor, _: slice | Tensor) -> Tensor:
            return self.apply(z[:, 0], slice(None)).movedim(1, 1 + batch_dim).unsqueeze(1)

        return Root((rows, *self.shape), apply)


def diagonal(std: Tensor) -> Root:  # (rows, *shape)
    """Independent noise of this std for every element."""
    return Root(tuple(std.shape[1:]), lambda z, rows: std[rows] * z, is_diagonal=True)


def sum_of(roots: Sequence[Root]) -> Root:
    """The root of independent noises that are added: their z side by side, flat."""
    sizes = [math.prod(root.shape) for root in roots]

    def apply(z: Tensor, rows: slice | Tensor) -> Tensor:
        parts = zip(roots, z.split(sizes, -1), strict=True)
        # Not by `unflatten`, which knows no empty shape: one number for a row.
        noises = [root.apply(part.reshape(*z.shape[:2], *root.shape), rows) for root, part in parts]
        return sum(noises[1:], start=noises[0])

    return Root((sum(sizes),), apply)


def rows_first(value: Tensor, x: Tensor, batch_dim: int | None) -> Tensor:  # (rows, *row's shape)
    """A value that broadcasts to `x`, for each of its elements, with the rows in front."""
    whole = value.expand(x.shape)
    return whole.unsqueeze(0) if batch_dim is None else whole.movedim(batch_dim, 0)


def encode(value: Any) -> object:
    """Nested values as plain data: tensors as lists with a dtype, noises as their config."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": value.detach().cpu().tolist(), "dtype": dtype}
    if hasattr(value, "to_config"):
        return value.to_config()
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
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
