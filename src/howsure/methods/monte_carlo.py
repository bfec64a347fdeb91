"""Mean, variance and standard error of outputs that arrive in chunks of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """Sums over samples, about a centre near their mean.

    Samples come in units that are independent of each other: single ones, or pairs that share
    their dropout masks. With a the average deviation of a unit from the centre, s its average
    squared deviation, and w half the squared difference of a pair, the variance at given masks:

    Attributes:
        centre: The mean of the first chunk, (rows, outputs).
        scale: What deviations are divided by, a power of 2 near the largest: their fourth powers
            would leave the range of single precision at a std of 1e10, or of 1e-10.
        count: How many units, (rows, 1).
        size: Samples of a unit, 1 or 2.
        sums: Of a, s, a squared, a s, s squared and w over the units, (6, rows, outputs).
    """

    centre: Tensor
    scale: Tensor
    count: Tensor
    size: int
    sums: Tensor

    @classmethod
    def of(cls, values: Tensor, first: Samples | None = None) -> Samples:
        """Those of one chunk, (units, size, rows, outputs), about the centre of the first."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if first is None else first.centre
        deviations = wide - middle
        scale = _power_of_two(deviations.abs().amax((0, 1))) if first is None else first.scale
        deviations = deviations / scale
        count = middle.new_full((len(middle), 1), float(len(wide)))
        if wide.shape[1] > 1:
            a, s = deviations.mean(1), deviations.square().mean(1)
            within = deviations.var(1, correction=1)
        else:
            a = deviations[:, 0]
            within = s = a.square()
        sums = torch.stack([a, s, a.square(), a * s, s.square(), within]).sum(1)
        return cls(middle, scale, count, wide.shape[1], sums)

    def __add__(self, other: Samples) -> Samples:
        """More units about the same centre."""
        return replace(self, count=self.count + other.count, sums=self.sums + other.sums)

    @cached_property
    def _means(self) -> tuple[Tensor, ...]:
        return (self.sums / self.count).unbind(0)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.centre + self.scale * self._means[0]

    @cached_property
    def _others(self) -> Tensor:
        """How many units there are besides one, at least 1; (rows, 1)."""
        return (self.count - 1).clamp(min=1)

    @cached_property
    def _var(self) -> Tensor:
        """In squares of the scale."""
        a, s, *_ = self._means
        return (s - a.square()).clamp(min=0) * (self.count / self._others)

    @property
    def var(self) -> Tensor:
        """Total variance of one sample, unbiased for single ones."""
        return self._var * self.scale.square()

    @property
    def data_var(self) -> Tensor:
        """The variance at given masks: all of it, where samples come one by one."""
        own = torch.minimum(self._means[5], self._var) if self.size > 1 else self._var
        return own * self.scale.square()

    @cached_property
    def _relative_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the centre are s: the spread of s - 2 a mean(a).
        """
        a, s, aa, product, ss, _ = self._means
        shift = a * (a * (aa - a.square()) - (product - s * a))
        spread = (ss - s.square() + 4 * shift).clamp(min=0) / self._others
        return torch.where(self._var > 0, spread.sqrt() / (2 * self._var), 0.0)

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
        count = torch.where(at, other.count, self.count)
        return replace(self, count=count, sums=torch.where(at, other.sums, self.sums))


def _power_of_two(size: Tensor) -> Tensor:
    """The next one above each number; 1 for 0 and for what is not finite."""
    power = torch.frexp(size).exponent
    known = (size > 0) & size.isfinite()
    return torch.ldexp(torch.ones_like(size), torch.where(known, power, 0))
