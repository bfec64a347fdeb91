"""Mean, variance and standard error from samples that arrive in chunks.

Samples come in groups that are independent of each other: single ones, or pairs that share their
dropout masks, so that the law of total variance splits into data and model variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from howsure.estimators.gradients import at_least

# Where a tolerance gives up.
MOST_SAMPLES = 2**16
# The relative standard error of a std that four samples leave.
_FEW = 0.25


@dataclass(frozen=True, eq=False)
class Samples:
    """Means over samples, about a center near their mean.

    With a the average deviation of a group from the center, s its average squared deviation, and w
    half the squared difference of a pair, the variance at given masks:

    Attributes:
        center: The mean of the first chunk, (rows, outputs).
        scale: What deviations are divided by, the largest of the first chunk: their fourth powers
            would leave the range of single precision at a std of 1e10, or of 1e-10.
        count: How many groups; (rows, 1) where rows differ.
        size: Samples of a group, 1 or 2.
        means: Of a, s, a squared, a s, s squared and w over the groups, (6, rows, outputs).
    """

    center: Tensor
    scale: Tensor
    count: float | Tensor
    size: int
    means: Tensor

    @classmethod
    def of(cls, values: Tensor, first: Samples | None = None) -> Samples:
        """Those of one chunk, (groups, size, rows, outputs), about the center of the first."""
        wide = values if values.dtype == torch.float64 else values.float()
        middle = wide.mean((0, 1)) if first is None else first.center
        deviations = wide - middle
        if first is None:
            largest = deviations.abs().amax((0, 1))
            scale = torch.where(largest > 0, largest, 1.0)
        else:
            scale = first.scale
        deviations = deviations / scale
        groups, size = wide.shape[:2]
        if size > 1:
            a, s = deviations.mean(1), deviations.square().mean(1)
            squares, within = a.square(), deviations.var(1, correction=1)
        else:
            a = deviations[:, 0]
            squares = within = s = a.square()
        means = torch.stack([a, s, squares, a * s, s.square(), within]).mean(1)
        return cls(middle, scale, float(groups), size, means)

    def __add__(self, other: Samples) -> Samples:
        """More groups about the same center."""
        count = self.count + other.count
        means = self.means + (other.count / count) * (other.means - self.means)
        return replace(self, count=count, means=means)

    @property
    def mean(self) -> Tensor:
        """Of all samples."""
        return self.center + self.scale * self.means[0]

    @property
    def _others(self) -> float | Tensor:
        """How many groups there are besides one, at least 1."""
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
        within = torch.minimum(self.means[5], self._var) if self.size > 1 else self._var
        return within * self.scale.square()

    @property
    def model_var(self) -> Tensor:
        """What the masks cause: the rest."""
        return self.var - self.data_var if self.size > 1 else torch.zeros_like(self.center)

    @property
    def are_constant(self) -> Tensor:  # (rows, outputs)
        """Whether all samples are the same, however small a variance may be."""
        return self._var == 0

    @cached_property
    def _relative_error(self) -> Tensor:
        """Of the total std, from the spread of the squared deviations from the mean.

        Those from the center are s: the spread of s - 2 a mean(a).
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

    @property
    def rest_on_few(self) -> Tensor:  # (rows, outputs)
        """Whether fewer than four samples, or far fewer than usual, make most of a variance.

        The standard error is then as uncertain as the std itself.
        """
        usual = (2 * self.count * self.size) ** -0.5
        return self._relative_error > at_least(_FEW, 4 * usual)

    def are_precise(self, tolerance: float) -> Tensor:  # (rows,)
        """Whether each row's largest relative standard error is below the tolerance."""
        # No number of samples makes a std of what is not finite.
        return ((self._relative_error <= tolerance) | ~self._var.isfinite()).all(1)

    def where(self, rows: Tensor, other: Samples) -> Samples:
        """The other's sums for these rows, (rows,), its own for the rest."""
        at = rows[:, None]
        count = torch.where(at, other.count, self.count).to(self.center)
        return replace(self, count=count, means=torch.where(at, other.means, self.means))


def sample(
    draw: Callable[[range], Tensor],
    samples: int,
    *,
    size: int = 1,
    at_once: int,
    tolerance: float | None = None,
    most: int = MOST_SAMPLES,
    least: Tensor | None = None,
) -> Samples:
    """The given number of samples, or as many as each row needs for the tolerance.

    Args:
        draw: The outputs of all samples of some groups, (groups * size, rows, outputs).
        samples: How many.
        size: Samples of a group.
        at_once: How many groups run together.
        tolerance: Largest relative standard error of any std; `None` takes `samples` as they are.
        most: Where a tolerance gives up.
        least: How many samples each row takes at least, (rows,), with a tolerance.
    """

    def run(groups: range, first: Samples | None) -> Samples:
        total: Samples | None = None
        for start in range(0, len(groups), at_once):
            values = draw(groups[start : start + at_once])
            chunk = Samples.of(values.unflatten(0, (-1, size)), first or total)
            total = chunk if total is None else total + chunk
        assert total is not None
        return total

    groups = samples // size
    total = run(range(groups), None)
    if tolerance is None:
        return total

    def are_enough() -> Tensor:
        precise = total.are_precise(tolerance)
        return precise if least is None else precise & (least <= groups * size)

    done = are_enough()
    while not bool(done.all()) and groups * size < most:
        more = run(range(groups, 2 * groups), total)
        total = total.where(~done, total + more)
        groups *= 2
        done = done | are_enough()
    return total
