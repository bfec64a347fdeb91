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
        count: How many units, (rows, 1).
        size: Samples of a unit, 1 or 2.
        sums: Of a, s, a squared, a s, s squared and w over the units, (6, rows, outputs).
    """

    centre: Tensor
    count: Tensor
    size: int
    sums: Tensor

    @classmethod
    def of(cls, values: Tensor, centre: Tensor | None = None) -> Samples:
        """Those of one chunk, (units, size, rows, outputs)."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if centre is None else centre
        deviations = wide - middle
        count = middle.new_full((len(middle), 1), float(len(wide)))
        if wide.shape[1] > 1:
            a, s = deviations.mean(1), deviations.square().mean(1)
            within = deviations.var(1, correction=1)
        else:
            a = deviations[:, 0]
            within = s = a.square()
        sums = torch.stack([a, s, a.square(), a * s, s.square(), within]).sum(1)
        return cls(middle, count, wide.shape[1], sums)

    def __add__(self, other: Samples) -> Samples:
        """More units about the same centre."""
        return replace(self, count=self.count + other.count, sums=self.sums + other.sums)

    @cached_property
    def _means(self) -> tuple[Tensor, ...]:
        return (self.sums / self.count).unbind(0)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.centre + self._means[0]

    @cached_property
    def _others(self) -> Tensor:
        """How many units there are besides one, at least 1; (rows, 1)."""
        return (self.count - 1).clamp(min=1)

    @cached_property
    def var(self) -> Tensor:
        """Total variance of one sample, unbiased for single ones."""
        a, s, *_ = self._means
        return (s - a.square()).clamp(min=0) * (self.count / self._others)

    @cached_property
    def _std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def data_var(self) -> Tensor:
        """The variance at given masks: all of it, where samples come one by one."""
        return torch.minimum(self._means[5], self.var) if self.size > 1 else self.var

    @cached_property
    def std_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the centre are s: the spread of s - 2 a mean(a).
        """
        a, s, aa, product, ss, _ = self._means
        shift = a * (a * (aa - a.square()) - (product - s * a))
        spread = (ss - s.square() + 4 * shift).clamp(min=0) / self._others
        return torch.where(self._std > 0, spread.sqrt() / (2 * self._std), 0.0)

    def are_precise(self, tolerance: float) -> Tensor:  # (rows,)
        """Whether each row's largest relative standard error is below the tolerance."""
        # No number of samples makes a std of what is not finite.
        return ((self.std_error <= tolerance * self._std) | ~self._std.isfinite()).all(1)

    def where(self, rows: Tensor, other: Samples) -> Samples:
        """The other's sums for these rows, (rows,), its own for the rest."""
        at = rows[:, None]
        count = torch.where(at, other.count, self.count)
        return replace(self, count=count, sums=torch.where(at, other.sums, self.sums))
