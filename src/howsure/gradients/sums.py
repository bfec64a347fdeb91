"""What is kept of blocks of points: sums that add up over blocks and line up over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.backward import Gradients
from howsure.gradients.points import Design
from howsure.gradients.quadrature import RHO


@dataclass(frozen=True, eq=False)
class Running:
    """Mean and spread of some numbers, for every row and output.

    Attributes:
        count: How many numbers, (rows, 1).
        mean: Their mean, (rows, outputs).
        squares: Sum of squared deviations from it.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Running:  # (count, rows, outputs)
        """All of these."""
        mean = numbers.mean(0)
        count = torch.full_like(mean[:, :1], float(len(numbers)))
        return cls(count, mean, (numbers - mean).square().sum(0))

    def __add__(self, other: Running) -> Running:
        """Those of both (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        share, gap = other.count / count.clamp(min=1), other.mean - self.mean
        squares = self.squares + other.squares + gap.square() * share * self.count
        return Running(count, self.mean + gap * share, squares)

    @property
    def standard_error(self) -> Tensor:
        """Of the mean; infinite for a single number."""
        degrees = (self.count - 1).clamp(min=0)
        return (self.squares / (degrees * self.count)).sqrt().nan_to_num(nan=torch.inf)


@dataclass(frozen=True, eq=False)
class Sums:
    """What some blocks say about some rows; rows come first everywhere.

    Attributes:
        variance: The blocks' total variances.
        values: The outputs at all points.
        blocks: How many blocks of even and of odd number, (rows, 2).
        data: Covariances that the noise causes, summed over blocks of even and of odd number,
            (rows, 2, outputs, outputs).
        model: The same for the masks.
        linear: Sum of the first-order variances, (rows, outputs).
        gaps: Sum of the squared errors that the halves of each block show, (rows, outputs).
        by_source: Sum of the variances by source, (rows, sources, outputs).
        elements: Of each noisy input the sum of variances by element, (rows, outputs, elements).
    """

    variance: Running
    values: Running
    blocks: Tensor
    data: Tensor
    model: Tensor
    linear: Tensor
    gaps: Tensor
    by_source: Tensor
    elements: tuple[Tensor, ...]

    def _tensors(self) -> tuple[Tensor, ...]:
        return (
            self.blocks,
            self.data,
            self.model,
            self.linear,
            self.gaps,
            self.by_source,
            *self.elements,
        )

    @classmethod
    def _of(cls, variance: Running, values: Running, tensors: Sequence[Tensor]) -> Sums:
        blocks, data, model, linear, gaps, by_source, *elements = tensors
        sums = (blocks, data, model, linear, gaps, by_source)
        return cls(variance, values, *sums, tuple(elements))

    def __add__(self, other: Sums) -> Sums:
        """More blocks of the same rows."""
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        running = (self.variance + other.variance, self.values + other.values)
        return Sums._of(*running, [one + two for one, two in pairs])

    def _by_row(self, function: Callable[[Tensor], Tensor]) -> Sums:
        variance, values = (
            Running(function(each.count), function(each.mean), function(each.squares))
            for each in (self.variance, self.values)
        )
        return Sums._of(variance, values, [function(each) for each in self._tensors()])

    def chosen(self, rows: Tensor) -> Sums:
        """Some of the rows."""
        return self._by_row(lambda each: each[rows])

    def scattered(self, rows: Tensor, count: int) -> Sums:
        """These rows among `count`, the others without any block."""
        return self._by_row(
            lambda each: each.new_zeros(count, *each.shape[1:]).index_copy(0, rows, each)
        )

    @staticmethod
    def joined(parts: Sequence[Sums]) -> Sums:
        """All rows of several."""
        if len(parts) == 1:
            return parts[0]

        def column(get: Callable[[Sums], Any]) -> Running:
            each = [get(part) for part in parts]
            names = ("count", "mean", "squares")
            return Running(*(torch.cat([getattr(r, name) for r in each]) for name in names))

        columns = zip(*(part._tensors() for part in parts), strict=True)
        running = (column(lambda part: part.variance), column(lambda part: part.values))
        return Sums._of(*running, [torch.cat(each) for each in columns])


def sums_of(found: Gradients, design: Design, inputs: int, first: int) -> Sums:
    """The sums of consecutive blocks, the first of which has the number `first`.

    The first `inputs` of the sources are sensors, the others masks.
    """
    points = design.points
    gradients = [_by_block(each, points) for each in found.by_source]
    grams = [_gram(each) for each in gradients]
    like = gradients[0]
    data_forms, model_forms = design.data, design.model
    sensors, masks = grams[:inputs], grams[inputs:]
    data = _covariance(sensors, data_forms.variance, like)
    model = _covariance(masks, model_forms.variance, like)
    linear = _variance(sensors, data_forms.linear, like) + _variance(
        masks, model_forms.linear, like
    )
    forms = [data_forms.variance] * inputs + [model_forms.variance] * len(masks)
    own = [_variance([gram], form, like).sum(0) for gram, form in zip(grams, forms, strict=True)]
    total = (data + model).diagonal(dim1=2, dim2=3)
    gap = _gap(sensors, data_forms.halves, data) + _gap(masks, model_forms.halves, model)
    numbers = range(first, first + len(data))
    return Sums(
        Running.of(total),
        Running.of(found.values.to(like.dtype)),
        _by_parity(torch.ones_like(total[:, :, 0]), numbers),
        _by_parity(data, numbers),
        _by_parity(model, numbers),
        linear.sum(0),
        gap.square().sum(0),
        torch.stack(own, 1),
        tuple(_elements(each, data_forms.variance) for each in gradients[:inputs]),
    )


def _by_block(gradients: Tensor, points: int) -> Tensor:
    """(blocks, rows, outputs, points, elements), in single precision or better."""
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    return wide.unflatten(1, (-1, points)).permute(1, 3, 0, 2, 4)


def _gram(gradients: Tensor) -> Tensor:
    """All inner products, (blocks, rows, outputs, points, outputs, points)."""
    blocks, rows, outputs, points, _ = gradients.shape
    flat = gradients.reshape(blocks * rows, outputs * points, -1)
    return (flat @ flat.mT).reshape(blocks, rows, outputs, points, outputs, points)


def _covariance(grams: Sequence[Tensor], form: Tensor, like: Tensor) -> Tensor:
    """Between all outputs, (blocks, rows, outputs, outputs), from the sum over sources."""
    if not grams:
        blocks, rows, outputs = like.shape[:3]
        return like.new_zeros(blocks, rows, outputs, outputs)
    return torch.einsum("pq,brkplq->brkl", form.to(like), sum(grams[1:], grams[0]))


def _variance(grams: Sequence[Tensor], form: Tensor, like: Tensor) -> Tensor:
    """Of every output, (blocks, rows, outputs), from the sum over sources."""
    if not grams:
        return like.new_zeros(like.shape[:3])
    own = sum(grams[1:], grams[0]).diagonal(dim1=2, dim2=4)
    return torch.einsum("pq,brpqk->brk", form.to(like), own)


def _gap(grams: Sequence[Tensor], halves: Tensor, covariance: Tensor) -> Tensor:
    """How far half of a block would be off, (blocks, rows, outputs): the error of a block.

    The halves share a part of their normal numbers: even orders of correlation RHO have RHO**2.
    """
    variance = covariance.diagonal(dim1=2, dim2=3)
    if not grams:
        return torch.zeros_like(variance)
    one, other = (_variance(grams, half, variance) for half in halves)
    both = one + other
    share = (one - other) / torch.where(both > 0, both, 1.0)
    return share * variance / math.sqrt(1 - RHO**2)


def _elements(gradients: Tensor, form: Tensor) -> Tensor:
    """The summands of the inner products, over all blocks: (rows, outputs, elements)."""
    return (gradients * torch.einsum("pq,brkqd->brkpd", form.to(gradients), gradients)).sum((0, 3))


def _by_parity(each: Tensor, numbers: range) -> Tensor:
    """Sums over the blocks of even and of odd number: (rows, 2, ...)."""
    nothing = torch.zeros_like(each[0])
    halves = [each[(start - numbers[0]) % 2 :: 2] for start in (0, 1)]
    return torch.stack([half.sum(0) if len(half) else nothing for half in halves], 1)
