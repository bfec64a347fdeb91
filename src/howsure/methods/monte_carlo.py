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
        scale: What deviations are divided by, a power of 2 near the largest: their fourth powers
            would leave the range of single precision at a std of 1e10, or of 1e-10.
        count: How many units; (rows, 1) where rows differ.
        size: Samples of a unit, 1 or 2.
        means: Of a, s, a squared, a s, s squared and w over the units, (6, rows, outputs).
    """

    centre: Tensor
    scale: Tensor
    count: float | Tensor
    size: int
    means: Tensor

    @classmethod
    def of(cls, values: Tensor, first: Samples | None = None) -> Samples:
        """Those of one chunk, (units, size, rows, outputs), about the centre of the first."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if first is None else first.centre
        deviations = wide - middle
        scale = _power_of_two(deviations.abs().amax((0, 1))) if first is None else first.scale
        deviations = deviations / scale
        units, size = wide.shape[:2]
        if size > 1:
            a, s = deviations.mean(1), deviations.square().mean(1)
            squares, within = a.square(), deviations.var(1, correction=1)
        else:
            a = deviations[:, 0]
            squares = within = s = a.square()
        means = torch.stack([a, s, squares, a * s, s.square(), within]).mean(1)
        return cls(middle, scale, float(units), size, means)

    def __add__(self, other: Samples) -> Samples:
        """More units about the same centre."""
        count = self.count + other.count
        means = self.means + (other.count / count) * (other.means - self.means)
        return replace(self, count=count, means=means)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.centre + self.scale * self.means[0]

    @property
    def _others(self) -> float | Tensor:
        """How many units there are besides one, at least 1."""
        return at_least(1.0, self.count - 1)

    @cached_property
    def _var(self) -> Tensor:
        """In squares of the scale."""
        a, s = self.means[0], self.means[1]
        return torch.addcmul(s, a, a, value=-1).relu() * (self.count / self._others)

    @property
    def var(self) -> Tensor:
        """Total variance of one sample, unbiased for single ones."""
        return self._var * self.scale.square()

    @property
    def data_var(self) -> Tensor:
        """The variance at given masks: all of it, where samples come one by one."""
        own = torch.minimum(self.means[5], self._var) if self.size > 1 else self._var
        return own * self.scale.square()

    @property
    def model_var(self) -> Tensor:
        """What the masks cause: the rest."""
        return self.var - self.data_var if self.size > 1 else torch.zeros_like(self.centre)

    @property
    def are_still(self) -> Tensor:  # (rows, outputs)
        """Whether all samples are the same, however small a variance may be."""
        return self._var == 0

    @cached_property
    def _relative_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the centre are s: the spread of s - 2 a mean(a).
        """
        a, s, aa, product, ss, _ = self.means.unbind(0)
        square = a.square()
        shift = torch.addcmul(square * (aa + s - square), a, product, value=-1)
        spread = torch.addcmul(ss, s, s, value=-1).add(shift, alpha=4).relu()
        per_unit = spread / (4 * self._others)
        return per_unit.sqrt() / (self._var + self._var.logical_not())

    @property
    def std_error(self) -> Tensor:
        """Of the total std."""
        return self._relative_error * self._var.sqrt() * self.scale

    def are_precise(self, tolerance: float) -> Tensor:  # (rows,)
        """Whether each row's largest relative standard error is below the tolerance."""
        # No number of samples makes a std of what is not finite.
        return ((self._relative_error <= tolerance) | ~self._var.isfinite()).all(1)

    def where(self, rows: Tensor, other: Samples) -> Samples:
        """The other's sums for these rows, (rows,), its own for the rest."""
        at = rows[:, None]
        count = torch.where(at, other.count, self.count).to(self.centre)
        return replace(self, count=count, means=torch.where(at, other.means, self.means))


def _power_of_two(size: Tensor) -> Tensor:
    """The next one above each number; 1 for 0 and for what is not finite."""
    power = torch.frexp(size).exponent
    known = (size > 0) & size.isfinite()
    return torch.ldexp(torch.ones_like(size), torch.where(known, power, 0))
