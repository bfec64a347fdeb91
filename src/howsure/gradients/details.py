"""What blocks of points tell if asked: covariances, halves, shares of sources and elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure.gradients.points import Design, Forms, table_of
from howsure.gradients.sources import Gradients

if TYPE_CHECKING:
    from howsure.gradients.sums import Told


@dataclass(frozen=True, eq=False)
class Running:
    """Mean and spread of some numbers, for every row and output.

    Attributes:
        count: How many numbers; (rows, 1) where rows differ.
        var: Their mean squared deviation from the mean, (rows, outputs).
        mean: Their mean.
    """

    count: float | Tensor
    var: Tensor
    mean: Tensor

    def __add__(self, other: Running) -> Running:
        """Those of both (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        share, gap = other.count / at_least(1.0, count), other.mean - self.mean
        var = self.var + share * (other.var - self.var) + share * (1 - share) * gap.square()
        return Running(count, var, self.mean + gap * share)

    def by_row(self, function: Callable[[Tensor], Tensor]) -> Running:
        """The same after a function that moves rows."""
        count = self.count
        if not isinstance(count, Tensor):
            count = self.mean.new_full((len(self.mean), 1), count)
        return Running(function(count), function(self.var), function(self.mean))

    @property
    def standard_error(self) -> Tensor:
        """Of the mean; infinite for a single number."""
        return (self.var / at_least(0.0, self.count - 1)).sqrt().nan_to_num(nan=torch.inf)


def at_least(least: float, count: float | Tensor) -> float | Tensor:
    """The count, and no less."""
    return count.clamp(min=least) if isinstance(count, Tensor) else max(least, count)


@dataclass(frozen=True, eq=False)
class Details:
    """What is summed over some blocks of some rows; rows come first everywhere.

    Attributes:
        spread: The variances that outputs at equal places of two blocks show, which share nothing.
        blocks: How many blocks of even and of odd number, (rows, 2).
        means: Outputs averaged over a block, summed over blocks of even and of odd number,
            (rows, 2, outputs).
        data: Covariances that the noise causes, likewise, (rows, 2, outputs, outputs).
        model: The same for the masks.
        linear: First-order variances, (rows, outputs).
        by_kind: Variances that the noise and the masks cause, (rows, 2, outputs).
        by_source: The same by source, (rows, sources, outputs).
        elements: Of each noisy input the variances by element, (rows, outputs, elements).
        watched: Gradients at all points with respect to watched multipliers, (rows, outputs,
            masks); no masks if none are watched.
    """

    spread: Running
    blocks: Tensor
    means: Tensor
    data: Tensor
    model: Tensor
    linear: Tensor
    by_kind: Tensor
    by_source: Tensor
    elements: tuple[Tensor, ...]
    watched: Tensor


def details_of(
    found: Gradients,
    gradients: Sequence[Tensor],
    sensors: Sequence[Told],
    masks: Sequence[Told],
    design: Design,
    numbers: range,
    *,
    compare: bool,
) -> Details:
    """The details of blocks of these numbers.

    Args:
        found: What the points say.
        gradients: The gradients of every source, (blocks, rows, outputs, points, elements).
        sensors: What those of the noisy inputs tell.
        masks: The same for the masks.
        design: The points of a block.
        numbers: Of the blocks.
        compare: Whether the outputs of neighbouring blocks are compared.
    """
    told = [*sensors, *masks]
    values = found.values.to(told[0].numbers.dtype)
    # Rows and outputs on one axis: for four axes an exported program would be tied to its strides.
    by_block = values.reshape(len(numbers), design.points, math.prod(values.shape[1:]))
    means = by_block.mean(1).reshape(len(numbers), *values.shape[1:])
    kinds = [_covariance(each, told[0]) for each in (sensors, masks)]
    diagonals = [each.sum(0).diagonal(dim1=1, dim2=2) for each in kinds]
    return Details(
        _spread(by_block[: len(numbers) if compare else 0], values),
        _parities(means, numbers),
        _by_parity(means, numbers),
        _by_parity(kinds[0], numbers),
        _by_parity(kinds[1], numbers),
        torch.stack([each.linear.sum(0) for each in told]).sum(0),
        torch.stack(diagonals, 1),
        torch.stack([each.variance.sum(0) for each in told], 1),
        tuple(_elements(each, design.data) for each in gradients[: len(sensors)]),
        _watched(found),
    )


def _watched(found: Gradients) -> Tensor:  # (rows, outputs, masks)
    if found.watched is None:
        return found.values.new_zeros(*found.values.shape[1:], 0)
    return found.watched.sum(1).transpose(0, 1)


def _covariance(sources: Sequence[Told], like: Told) -> Tensor:
    """The sum over sources, (blocks, rows, outputs, outputs); 0 without any."""
    return sum((each.covariance for each in sources), torch.zeros_like(like.covariance))


def _spread(by_block: Tensor, values: Tensor) -> Running:
    """Half the squared difference of blocks, two by two, averaged over their points."""
    pairs = len(by_block) // 2
    if not pairs:
        nothing = torch.zeros_like(values[0])
        return Running(0.0, nothing, nothing)
    gap = by_block[0 : 2 * pairs : 2] - by_block[1 : 2 * pairs : 2]
    found = (gap.square().mean(1) / 2).unflatten(1, values.shape[1:])
    return Running(float(pairs), *torch.var_mean(found, 0, correction=0))


def _elements(gradients: Tensor, forms: Forms) -> Tensor:
    """The summands of the inner products, over all blocks: (rows, outputs, elements)."""
    form = table_of(forms, gradients.dtype, gradients.device)[1]
    return (gradients * (form @ gradients)).sum((0, 3))


def _by_parity(each: Tensor, numbers: range) -> Tensor:
    """Sums over the blocks of even and of odd number: (rows, 2, ...)."""
    if len(numbers) == 2 and numbers[0] % 2 == 0:
        return each.transpose(0, 1)
    nothing = torch.zeros_like(each[0])
    halves = [each[(start - numbers[0]) % 2 :: 2] for start in (0, 1)]
    return torch.stack([half.sum(0) if len(half) else nothing for half in halves], 1)


def _parities(like: Tensor, numbers: range) -> Tensor:
    """How many blocks have an even and an odd number, (rows, 2)."""
    if len(numbers) % 2 == 0:
        return like.new_full((like.shape[1], 2), len(numbers) / 2)
    odd = sum(number % 2 for number in numbers)
    counts = torch.tensor([len(numbers) - odd, odd], dtype=like.dtype, device=like.device)
    return counts.expand(like.shape[1], 2)
