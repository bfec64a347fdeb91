"""Mean, variance and standard error of outputs that arrive in chunks of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from howsure.gradients.details import at_least


@dataclass(frozen=True, eq=False)
class Samples:
    """Means over samples, about a centre near their mean.

    Samples come in units that are independent of each other: single ones, or pairs that share
    their dropout masks. With a the average deviation of a unit from the centre, s its average
    squared deviation, and w half the squared difference of a pair, the variance at given masks:

    Attributes:
        centre: The mean of the first chunk, (rows, outputs).
        count: How many units; (rows, 1) where rows differ.
        size: Samples of a unit, 1 or 2.
        means: Of a, s, a squared, a s, s squared and w over the units, (6, rows, outputs).
    """

    centre: Tensor
    count: float | Tensor
    size: int
    means: Tensor

    @classmethod
    def of(cls, values: Tensor, centre: Tensor | None = None) -> Samples:
        """Those of one chunk, (units, size, rows, outputs)."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if centre is None else centre
        deviations = wide - middle
        units, size = wide.shape[:2]
        if size > 1:
            a, s = deviations.mean(1), deviations.square().mean(1)
            squares, within = a.square(), deviations.var(1, correction=1)
        else:
            a = deviations[:, 0]
            squares = within = s = a.square()
        means = torch.stack([a, s, squares, a * s, s.square(), within]).mean(1)
        return cls(middle, float(units), size, means)

    def __add__(self, other: Samples) -> Samples:
        """More units about the same centre."""
        count = self.count + other.count
        means = self.means + (other.count / count) * (other.means - self.means)
        return replace(self, count=count, means=means)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.centre + self.means[0]

    @property
    def _others(self) -> float | Tensor:
        """How many units there are besides one, at least 1."""
        return at_least(1.0, self.count - 1)

    @cached_property
    def var(self) -> Tensor:
        """Total variance of one sample, unbiased for single ones."""
        a, s = self.means[0], self.means[1]
        return torch.addcmul(s, a, a, value=-1).relu() * (self.count / self._others)

    @cached_property
    def _std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def data_var(self) -> Tensor:
        """The variance at given masks: all of it, where samples come one by one."""
        return torch.minimum(self.means[5], self.var) if self.size > 1 else self.var

    @cached_property
    def std_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the centre are s: the spread of s - 2 a mean(a).
        """
        a, s, aa, product, ss, _ = self.means.unbind(0)
        square = a.square()
        shift = torch.addcmul(square * (aa + s - square), a, product, value=-1)
        spread = torch.addcmul(ss, s, s, value=-1).add(shift, alpha=4).relu()
        per_unit = spread / (4 * self._others)
        return (per_unit / (self.var + self.var.logical_not())).sqrt()

    def are_precise(self, tolerance: float) -> Tensor:  # (rows,)
        """Whether each row's largest relative standard error is below the tolerance."""
        # No number of samples makes a std of what is not finite.
        return ((self.std_error <= tolerance * self._std) | ~self._std.isfinite()).all(1)

    def where(self, rows: Tensor, other: Samples) -> Samples:
        """The other's sums for these rows, (rows,), its own for the rest."""
        at = rows[:, None]
        count = torch.where(at, other.count, self.count).to(self.centre)
        return replace(self, count=count, means=torch.where(at, other.means, self.means))
