"""What is kept of blocks of points: sums that add up over blocks and line up over rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.points import Design, Forms, table_of
from howsure.gradients.sources import Gradients
from howsure.values.trees import Later, may_be_later


@dataclass(frozen=True, eq=False)
class Running:
    """Mean and spread of some numbers, for every row and output.

    Attributes:
        count: How many numbers; (rows, 1) where rows differ.
        mean: Their mean, (rows, outputs).
        squares: Sum of squared deviations from it.
    """

    count: float | Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Running:  # (count, rows, outputs)
        """All of these."""
        many = len(numbers)
        if many == 1:
            return cls(1.0, numbers[0], torch.zeros_like(numbers[0]))
        variance, mean = torch.var_mean(numbers, 0, correction=0)
        return cls(float(many), mean, variance * many)

    def __add__(self, other: Running) -> Running:
        """Those of both (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        share, gap = other.count / at_least(1.0, count), other.mean - self.mean
        squares = self.squares + other.squares + gap.square() * share * self.count
        return Running(count, self.mean + gap * share, squares)

    def by_row(self, function: Callable[[Tensor], Tensor]) -> Running:
        """The same after a function that moves rows."""
        count = self.count
        if not isinstance(count, Tensor):
            count = self.mean.new_full((len(self.mean), 1), count)
        return Running(function(count), function(self.mean), function(self.squares))

    @property
    def standard_error(self) -> Tensor:
        """Of the mean; infinite for a single number."""
        degrees = at_least(0.0, self.count - 1)
        return (self.squares / (degrees * self.count)).sqrt().nan_to_num(nan=torch.inf)


def at_least(least: float, count: float | Tensor) -> float | Tensor:
    """The count, and no less."""
    return count.clamp(min=least) if isinstance(count, Tensor) else max(least, count)


@may_be_later("spread", "blocks", "means", "data", "model", "linear", "by_source", "watched")
@dataclass(frozen=True, eq=False)
class Sums:
    """What some blocks say about some rows; rows come first everywhere.

    What a prediction does not need by itself is computed later.

    Attributes:
        variance: The blocks' total variances.
        values: The outputs at all points.
        data_var: Sum of the variances that the noise causes, (rows, outputs).
        model_var: The same for the masks.
        gaps: Sum of the squared errors that the halves of each block show, (rows, outputs).
        elements: Of each noisy input the sum of variances by element, (rows, outputs, elements).
        spread: The variances that outputs at equal places of two blocks show, which share nothing.
        blocks: How many blocks of even and of odd number, (rows, 2).
        means: Outputs averaged over a block, summed over blocks of even and of odd number,
            (rows, 2, outputs).
        data: Covariances that the noise causes, likewise, (rows, 2, outputs, outputs).
        model: The same for the masks.
        linear: Sum of the first-order variances, (rows, outputs).
        by_source: Sum of the variances by source, (rows, sources, outputs).
        watched: Sum over all points of the gradients with respect to watched multipliers, (rows,
            outputs, masks); no masks if none are watched.
    """

    variance: Running
    values: Running
    data_var: Tensor
    model_var: Tensor
    gaps: Tensor
    elements: tuple[Tensor, ...]
    spread: Running
    blocks: Tensor
    means: Tensor
    data: Tensor
    model: Tensor
    linear: Tensor
    by_source: Tensor
    watched: Tensor

    def _columns(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __add__(self, other: Sums) -> Sums:
        """More blocks of the same rows."""
        return Sums._merged(operator.add, self, other)

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
        return parts[0] if len(parts) == 1 else Sums._merged(_joined, *parts)

    def _by_row(self, function: Callable[[Tensor], Tensor]) -> Sums:
        def moved(each: Any) -> Any:
            return each.by_row(function) if isinstance(each, Running) else function(each)

        return Sums._merged(moved, self)

    @staticmethod
    def _merged(function: Callable[..., Any], *parts: Sums) -> Sums:
        """One of several: a function of each of their fields, and of each noisy input's elements."""
        columns = [part._columns() for part in parts]
        elements = zip(*(each.pop("elements") for each in columns), strict=True)
        merged = {name: function(*(each[name] for each in columns)) for name in columns[0]}
        return Sums(**merged, elements=tuple(function(*each) for each in elements))


def _joined(*parts: Any) -> Any:
    """The rows of all; they have as many blocks."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    mean, squares = (torch.cat([getattr(p, n) for p in parts]) for n in ("mean", "squares"))
    return Running(parts[0].count, mean, squares)


def sums_of(
    found: Gradients, design: Design, inputs: int, numbers: range, *, compare: bool
) -> Sums:
    """The sums of blocks of these numbers.

    The first `inputs` of the sources are sensors, the others masks. Outputs of neighbouring blocks
    are compared if asked for.
    """
    gradients = [_by_block(each, design.points) for each in found.by_source]
    told = [
        _told(each, design.data if number < inputs else design.model)
        for number, each in enumerate(gradients)
    ]
    data, model = _added(told[:inputs]), _added(told[inputs:])
    total, gap = _total([each for each in (data, model) if each is not None])
    values = found.values.to(gap.dtype)
    # Rows and outputs on one axis: for four axes an exported program would be tied to its strides.
    by_block = values.reshape(len(numbers), design.points, math.prod(values.shape[1:]))
    return Sums(
        Running.of(total),
        Running.of(values),
        _summed(data, gap),
        _summed(model, gap),
        gap.square().sum(0),
        tuple(_elements(each, design.data) for each in gradients[:inputs]),
        Later(lambda: _spread(by_block[: len(numbers) if compare else 0], values)),
        Later(lambda: _parities(gap, numbers)),
        Later(lambda: _by_parity(by_block.mean(1).reshape(-1, *values.shape[1:]), numbers)),
        Later(lambda: _covariance(data, gap, numbers)),
        Later(lambda: _covariance(model, gap, numbers)),
        Later(lambda: torch.stack([each.linear.sum(0) for each in told]).sum(0)),
        Later(lambda: torch.stack([each.variance.sum(0) for each in told], 1)),
        _watched(found),
    )


def block_variances(found: Gradients, design: Design, inputs: int) -> Tensor:
    """The total variance by every block alone, (blocks, rows, outputs); no covariances."""
    parts = []
    for number, each in enumerate(found.by_source):
        forms = design.data if number < inputs else design.model
        gradients = _by_block(each, design.points)
        gram = gradients @ gradients.mT
        parts.append((gram * forms.variance.to(gram)).sum((3, 4)))
    return torch.stack(parts).sum(0)


def _watched(found: Gradients) -> Tensor | Later:  # (rows, outputs, masks)
    if found.watched is None:
        rows, outputs = found.values.shape[1:]
        return Later(lambda: found.values.new_zeros(rows, outputs, 0))
    return found.watched.sum(1).transpose(0, 1)


class Told:
    """What the forms of a design say about some sources.

    Attributes:
        numbers: Of all pairs of outputs: covariance, its first-order part, by how much the halves
            of a block differ and their sum, (4, blocks, rows, outputs * outputs).
        outputs: How many.
        variance: Of every output, (blocks, rows, outputs); then the others.
    """

    def __init__(self, numbers: Tensor, outputs: int) -> None:
        self.numbers, self.outputs = numbers, outputs
        own = numbers if outputs == 1 else numbers[..., :: outputs + 1]
        self.variance, self.linear, self.apart, self.both = own.unbind(0)

    @property
    def covariance(self) -> Tensor:
        """(blocks, rows, outputs, outputs)."""
        return self.numbers[0].unflatten(2, (self.outputs, self.outputs))

    @property
    def gap(self) -> Tensor:
        """How far the halves of a block are apart: the error of a block."""
        # A block whose halves are both 0 has no gradient at all.
        least = torch.finfo(self.both.dtype).tiny
        return self.variance * self.apart / self.both.clamp(min=least)


def _by_block(gradients: Tensor, points: int) -> Tensor:
    """(blocks, rows, outputs, points, elements), in single precision or better."""
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    outputs, count, rows, elements = wide.shape
    return wide.reshape(outputs, count // points, points, rows, elements).permute(1, 3, 0, 2, 4)


def _told(gradients: Tensor, forms: Forms) -> Told:
    """What the inner products of one source's gradients say."""
    blocks, rows, outputs, points, elements = gradients.shape
    flat = gradients.reshape(blocks * rows, outputs * points, elements)
    gram = flat @ flat.mT
    if outputs > 1:
        gram = gram.reshape(-1, outputs, points, outputs, points).transpose(2, 3)
    table = table_of(forms, gradients.dtype, gradients.device)[0]
    numbers = table @ gram.reshape(-1, points * points).mT
    return Told(numbers.reshape(len(table), blocks, rows, outputs * outputs), outputs)


def _added(sources: Sequence[Told]) -> Told | None:
    """The sum over sources; `None` if there are none."""
    if len(sources) < 2:
        return sources[0] if sources else None
    return Told(torch.stack([each.numbers for each in sources]).sum(0), sources[0].outputs)


def _total(kinds: Sequence[Told]) -> tuple[Tensor, Tensor]:  # (blocks, rows, outputs) each
    """The variances by all blocks, and their errors."""
    first, *others = kinds
    variance, gap = first.variance, first.gap
    for each in others:
        variance, gap = variance + each.variance, gap + each.gap
    return variance, gap


def _summed(told: Told | None, like: Tensor) -> Tensor:  # (rows, outputs)
    """Variances summed over blocks; 0 without any source."""
    return torch.zeros_like(like[0]) if told is None else told.variance.sum(0)


def _covariance(told: Told | None, like: Tensor, numbers: range) -> Tensor:
    """Covariances by the parity of blocks; 0 without any source."""
    if told is not None:
        return _by_parity(told.covariance, numbers)
    _, rows, outputs = like.shape
    return like.new_zeros(rows, 2, outputs, outputs)


def _spread(by_block: Tensor, values: Tensor) -> Running:
    """Half the squared difference of blocks, two by two, averaged over their points."""
    pairs = len(by_block) // 2
    if not pairs:
        nothing = torch.zeros_like(values[0])
        return Running(0.0, nothing, nothing)
    gap = by_block[0 : 2 * pairs : 2] - by_block[1 : 2 * pairs : 2]
    return Running.of((gap.square().mean(1) / 2).unflatten(1, values.shape[1:]))


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
