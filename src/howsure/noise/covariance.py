"""Noise of a given covariance between the elements of an input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.pattern import Row
from howsure.noise.values import Root, as_value, check, like, wide

# Of the largest number of a covariance: what rounding to float32 leaves of symmetry, and of
# eigenvalues that are 0.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Correlated(Noise):
    """Noise of covariance factor factor', over all elements of an input or along one axis."""

    kind: ClassVar[str] = "correlated"
    factor: Tensor  # ([rows,] elements, sources)
    axis: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factor, Tensor) or self.factor.dim() not in (2, 3):
            shape = tuple(self.factor.shape) if isinstance(self.factor, Tensor) else "()"
            raise ValueError(
                f"`factor` has shape {shape}; give a matrix (elements, sources), whose product "
                "with its transpose is the covariance."
            )
        check("factor", self.factor, signed=True)

    def var_at(self, x: Tensor) -> Tensor:
        """The sums of squares of the factor's rows."""
        var = like(self.factor, x).square().sum(-1)  # ([rows,] elements)
        if self.axis is not None:
            at = Row.of(x, None).at(self.axis)
            self._check_length(x.shape[at], f"axis {self.axis} of the input has")
            own = var.reshape(*var.shape[:-1], *(1,) * (x.dim() - var.dim()), var.shape[-1])
            return own.movedim(-1, at)
        size = math.prod(x.shape[1:])
        is_one = self.factor.dim() == 2 and size != var.shape[-1] == x.numel()
        self._check_length(x.numel() if is_one else size, "an input has")
        return var.reshape(x.shape if is_one else (*var.shape[:-1], *x.shape[1:]))

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The factor, applied to the flat input or along the axis."""
        row, factor = Row.of(x, batch_dim), like(self.factor, wide(x))
        rows = 1 if batch_dim is None else x.shape[batch_dim]
        if factor.dim() == 3 and len(factor) != rows:
            raise ValueError(
                f"The noise has a covariance for each of {len(factor)} inputs, and the batch has "
                f"{rows}; give one for all, or a batch of {len(factor)}."
            )
        if self.axis is None:
            self._check_length(math.prod(row.shape), "an input has")
            return Root(
                (factor.shape[-1],),
                lambda z, rows: _mixed(factor, z, rows).reshape(*z.shape[:2], *row.shape),
            )
        at = row.at(self.axis)
        self._check_length(row.shape[at], f"axis {self.axis} of the input has")
        others = [size for i, size in enumerate(row.shape) if i != at + len(row.shape)]
        return Root(
            (*others, factor.shape[-1]),
            lambda z, rows: _mixed(factor, z, rows).movedim(-1, at),
        )

    def _check_length(self, found: int, what: str) -> None:
        length = self.factor.shape[-2]
        if found != length:
            raise ValueError(
                f"The noise has a covariance of {length} elements, and {what} {found}; give one "
                "for all elements of an input, in the order of `flatten`, or `axis=` for one along "
                "an axis."
            )


def _mixed(factor: Tensor, z: Tensor, rows: slice | Tensor) -> Tensor:
    """The product of the factor with the last axis of z, (points, rows, ..., sources)."""
    own = factor.to(z.dtype)
    if own.dim() == 2:
        return z @ own.mT
    flat = z.reshape(*z.shape[:2], -1, z.shape[-1])
    return (flat @ own[rows].mT).reshape(*z.shape[:-1], own.shape[-2])


def correlated(
    *, covariance: object = None, factor: object = None, axis: int | None = None
) -> Correlated:
    """Noise of a given covariance between the elements of an input.

    A factor F with few columns is cheap for large inputs: the noise is F z with z standard normal,
    and its covariance F F'.

    Args:
        covariance: A symmetric matrix without negative eigenvalues, (elements, elements), for the
            elements of an input in the order of `flatten`; or (batch, elements, elements), one for
            each input. Or give `factor`.
        factor: (elements, sources), or (batch, elements, sources).
        axis: The axis of the input whose elements it is about, as for the channels of a camera or
            the axes of a gyroscope; whatever else the input has repeats it independently.
    """
    if (covariance is None) == (factor is None):
        raise ValueError("Give `correlated` either `covariance=` or `factor=`, and not both.")
    if axis is not None and not isinstance(axis, int):
        raise TypeError(f"`axis` is a {type(axis).__name__}; give the number of an axis.")
    if covariance is None:
        return Correlated(_tensor(factor, "factor"), axis)
    return Correlated(_root_of(_tensor(covariance, "covariance")), axis)


def _tensor(value: object, name: str) -> Tensor:
    found = torch.as_tensor(as_value(value, name))
    check(name, found, signed=True)
    return found


def _root_of(covariance: Tensor) -> Tensor:
    """A matrix whose product with its transpose is the covariance; an error if there is none."""
    sizes = covariance.shape[-2:]
    if covariance.dim() not in (2, 3) or sizes[0] != sizes[1] or not covariance.numel():
        raise ValueError(
            f"`covariance` has shape {tuple(covariance.shape)}; it must be square, (elements, "
            "elements), or one such matrix for each input."
        )
    # Not every device has float64, which a nearly singular matrix needs.
    wanted = covariance.cpu().double()
    largest = float(wanted.detach().abs().amax())
    if float((wanted - wanted.mT).detach().abs().amax()) > _ROUNDING * largest:
        raise ValueError(
            "`covariance` is not symmetric; average it with its transpose if the difference is "
            "rounding, or give `factor=` if it is a square root."
        )
    lower, failed = torch.linalg.cholesky_ex(wanted)
    found = _of_singular(wanted) if bool(failed.any()) else lower
    return found.to(torch.promote_types(covariance.dtype, torch.float32)).to(covariance.device)


def _of_singular(covariance: Tensor) -> Tensor:
    """The root by eigenvectors, of which Cholesky's algorithm finds none."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    lowest, highest = float(values.detach().min()), float(values.detach().max())
    if lowest < -_ROUNDING * highest:
        raise ValueError(
            f"`covariance` has the negative eigenvalue {lowest:.3g}, as no covariance has; are "
            "some numbers correlations, and others variances?"
        )
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
