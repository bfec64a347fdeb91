"""Mean, variance and standard error of outputs that arrive in chunks of samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """Sums over samples, about a centre near their mean; (rows, outputs) each.

    Samples come in units that are independent of each other: single ones, or pairs that share
    their dropout masks.

    Attributes:
        centre: The mean of the first chunk.
        count: How many units, (rows, 1).
        size: Samples of a unit, 1 or 2.
        first: Sum over units of the average deviation from the centre.
        second: Sum over units of the average squared deviation.
        square: Sum of the squares of the first: average deviations.
        third: Sum of the products of both.
        fourth: Sum of the squares of the second.
        within: Sum over pairs of half the squared difference: the variance at given masks.
    """

    centre: Tensor
    count: Tensor
    size: int
    first: Tensor
    second: Tensor
    square: Tensor
    third: Tensor
    fourth: Tensor
    within: Tensor

    @classmethod
    def of(cls, values: Tensor, centre: Tensor | None = None) -> Samples:
        """Those of one chunk, (units, size, rows, outputs)."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if centre is None else centre
        deviations = wide - middle
        count = middle.new_full((len(middle), 1), float(len(wide)))
        if wide.shape[1] > 1:
            averages, squares = deviations.mean(1), deviations.square().mean(1)
            within = deviations.var(1, correction=1)
        else:
            averages = deviations[:, 0]
            within = squares = averages.square()
        products = [averages.square(), averages * squares, squares.square()]
        columns = torch.stack([averages, squares, *products, within]).sum(1)
        return cls(middle, count, wide.shape[1], *columns.unbind(0))

    def __add__(self, other: Samples) -> Samples:
        """More units about the same centre."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        return Samples(self.centre, size=self.size, **sums)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.centre + self.first / self.count

    @cached_property
    def var(self) -> Tensor:
        """Total variance of one sample, unbiased for single ones."""
        n = self.count
        biased = self.second / n - (self.first / n).square()
        return biased.clamp(min=0) * (n / (n - 1).clamp(min=1))

    @property
    def data_var(self) -> Tensor:
        """The variance at given masks: all of it, where samples come one by one."""
        return torch.minimum(self.within / self.count, self.var) if self.size > 1 else self.var

    @cached_property
    def std_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the centre, s, with the averages a: the spread of s - 2 a mean(a).
        """
        n = self.count
        a, s = self.first / n, self.second / n
        squares = self.fourth / n - s.square()
        shift = 4 * a.square() * (self.square / n - a.square()) - 4 * a * (self.third / n - s * a)
        spread = (squares + shift).clamp(min=0) / (n - 1).clamp(min=1)
        std = self.var.sqrt()
        return torch.where(std > 0, spread.sqrt() / (2 * torch.where(std > 0, std, 1.0)), 0.0)

    def are_precise(self, tolerance: float) -> Tensor:  # (rows,)
        """Whether each row's largest relative standard error is below the tolerance."""
        return (self.std_error <= tolerance * self.var.sqrt()).all(1)

    def where(self, rows: Tensor, other: Samples) -> Samples:
        """The other's sums for these rows, (rows,), its own for the rest."""
        at = rows[:, None]
        mixed = {n: torch.where(at, getattr(other, n), getattr(self, n)) for n in _SUMS}
        return Samples(self.centre, size=self.size, **mixed)


_SUMS = ("count", "first", "second", "square", "third", "fourth", "within")
