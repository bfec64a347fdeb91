"""What is kept of blocks of points: sums that add up over blocks and line up over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from howsure.gradients.points import Design, Forms, table_of
from howsure.gradients.sources import Gradients


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
        many = len(numbers)
        count = numbers.new_full((numbers.shape[1], 1), float(many))
        if many == 1:
            return cls(count, numbers[0], torch.zeros_like(numbers[0]))
        variance, mean = torch.var_mean(numbers, 0, correction=0)
        return cls(count, mean, variance * many)

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
        spread: The variances that outputs at equal places of two blocks show, which share nothing.
        blocks: How many blocks of even and of odd number, (rows, 2).
        means: Outputs averaged over a block, summed over blocks of even and of odd number,
            (rows, 2, outputs).
        data: Covariances that the noise causes, likewise, (rows, 2, outputs, outputs).
        model: The same for the masks.
        linear: Sum of the first-order variances, (rows, outputs).
        gaps: Sum of the squared errors that the halves of each block show, (rows, outputs).
        by_source: Sum of the variances by source, (rows, sources, outputs).
        watched: Sum over all points of the gradients with respect to watched multipliers, (rows,
            outputs, masks); no masks if none are watched.
        elements: Of each noisy input the sum of variances by element, (rows, outputs, elements).
    """

    variance: Running
    values: Running
    spread: Running
    blocks: Tensor
    means: Tensor
    data: Tensor
    model: Tensor
    linear: Tensor
    gaps: Tensor
    by_source: Tensor
    watched: Tensor
    elements: tuple[Tensor, ...]

    def _tensors(self) -> tuple[Tensor, ...]:
        halves = (self.blocks, self.means, self.data, self.model)
        return (*halves, self.linear, self.gaps, self.by_source, self.watched, *self.elements)

    @property
    def _running(self) -> tuple[Running, Running, Running]:
        return self.variance, self.values, self.spread

    @classmethod
    def _of(cls, running: Sequence[Running], tensors: Sequence[Tensor]) -> Sums:
        variance, values, spread = running
        blocks, means, data, model, linear, gaps, by_source, watched, *elements = tensors
        sums = (blocks, means, data, model, linear, gaps, by_source, watched)
        return cls(variance, values, spread, *sums, tuple(elements))

    def __add__(self, other: Sums) -> Sums:
        """More blocks of the same rows."""
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        running = [a + b for a, b in zip(self._running, other._running, strict=True)]
        return Sums._of(running, [one + two for one, two in pairs])

    def _by_row(self, function: Callable[[Tensor], Tensor]) -> Sums:
        running = [
            Running(function(each.count), function(each.mean), function(each.squares))
            for each in self._running
        ]
        return Sums._of(running, [function(each) for each in self._tensors()])

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

        def column(each: Sequence[Running]) -> Running:
            names = ("count", "mean", "squares")
            return Running(*(torch.cat([getattr(r, name) for r in each]) for name in names))

        columns = zip(*(part._tensors() for part in parts), strict=True)
        running = zip(*(part._running for part in parts), strict=True)
        return Sums._of([column(each) for each in running], [torch.cat(each) for each in columns])


def sums_of(
    found: Gradients, design: Design, inputs: int, numbers: range, *, compare: bool
) -> Sums:
    """The sums of blocks of these numbers.

    The first `inputs` of the sources are sensors, the others masks. Outputs of neighbouring blocks
    are compared if asked for.
    """
    gradients = [_by_block(each, design.points) for each in found.by_source]
    sensors = [_told(each, design.data) for each in gradients[:inputs]]
    masks = [_told(each, design.model) for each in gradients[inputs:]]
    data, model = _added(sensors), _added(masks)
    total = _added([each for each in (data, model) if each is not None])
    assert total is not None
    gap = _total_gap((data, design.data.apart), (model, design.model.apart))
    values = found.values.to(gap.dtype)
    # Rows and outputs on one axis: for four axes an exported program would be tied to its strides.
    by_block = values.reshape(len(numbers), design.points, math.prod(values.shape[1:]))
    return Sums(
        Running.of(total.variance),
        Running.of(values),
        _spread(by_block[: len(numbers) if compare else 0], values),
        _parities(gap, numbers),
        _by_parity(by_block.mean(1).reshape(len(numbers), *values.shape[1:]), numbers),
        _covariance(data, total, numbers),
        _covariance(model, total, numbers),
        total.linear.sum(0),
        gap.square().sum(0),
        torch.stack([each.variance.sum(0) for each in (*sensors, *masks)], 1),
        _watched(found),
        tuple(_elements(each, design.data) for each in gradients[:inputs]),
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


def _watched(found: Gradients) -> Tensor:  # (rows, outputs, masks)
    if found.watched is None:
        return found.values.new_zeros(*found.values.shape[1:], 0)
    return found.watched.sum(1).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Told:
    """What the forms of a design say.

    Attributes:
        covariance: Between all outputs, (blocks, rows, outputs, outputs).
        variance: Its diagonal, (blocks, rows, outputs).
        linear: The first-order part of that.
        one: The same by one half of each block, up to a factor.
        other: By the other half.
    """

    covariance: Tensor
    variance: Tensor
    linear: Tensor
    one: Tensor
    other: Tensor


def _by_block(gradients: Tensor, points: int) -> Tensor:
    """(blocks, rows, outputs, points, elements), in single precision or better."""
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    outputs, count, rows, elements = wide.shape
    return wide.reshape(outputs, count // points, points, rows, elements).permute(1, 3, 0, 2, 4)


def _told(gradients: Tensor, forms: Forms) -> Told:
    """What the inner products of one source's gradients say."""
    blocks, rows, outputs, points, _ = gradients.shape
    flat = gradients.reshape(blocks * rows, outputs * points, -1)
    gram = (flat @ flat.mT).reshape(-1, outputs, points, outputs, points)
    pairs = gram.transpose(2, 3).reshape(-1, points * points)
    found = (table_of(forms, gradients.dtype, gradients.device)[0] @ pairs.mT).unbind(0)
    # One form at a time: with a fifth axis an exported program would be tied to its strides.
    if outputs == 1:
        variances = [each.reshape(blocks, rows, 1) for each in found]
        return Told(variances[0][..., None], *variances)
    covariances = [each.reshape(blocks, rows, outputs, outputs) for each in found]
    return Told(covariances[0], *(each.diagonal(dim1=2, dim2=3) for each in covariances))


def _added(sources: Sequence[Told]) -> Told | None:
    """The sum over sources; `None` if there are none."""
    names = [field.name for field in fields(Told)]
    if not sources:
        return None
    total, *others = sources
    for each in others:
        total = Told(*(getattr(total, name) + getattr(each, name) for name in names))
    return total


def _covariance(told: Told | None, like: Told, numbers: range) -> Tensor:
    """Covariances by the parity of blocks; 0 without any source."""
    if told is not None:
        return _by_parity(told.covariance, numbers)
    _, rows, *outputs = like.covariance.shape
    return like.covariance.new_zeros(rows, 2, *outputs)


def _total_gap(*kinds: tuple[Told | None, float]) -> Tensor:  # (blocks, rows, outputs)
    first, *others = [_gap(told, apart) for told, apart in kinds if told is not None]
    return sum(others, first)


def _gap(told: Told, apart: float) -> Tensor:  # (blocks, rows, outputs)
    """How far the halves of a block are apart: the error of a block."""
    both = told.one + told.other
    return apart * told.variance * (told.one - told.other) / torch.where(both > 0, both, 1.0)


def _spread(by_block: Tensor, values: Tensor) -> Running:
    """Half the squared difference of blocks, two by two, averaged over their points."""
    pairs = len(by_block) // 2
    if not pairs:
        nothing = torch.zeros_like(values[0])
        return Running(nothing[:, :1], nothing, nothing)
    gap = by_block[0 : 2 * pairs : 2] - by_block[1 : 2 * pairs : 2]
    return Running.of((gap.square().mean(1) / 2).unflatten(1, values.shape[1:]))


def _elements(gradients: Tensor, forms: Forms) -> Tensor:
    """The summands of the inner products, over all blocks: (rows, outputs, elements)."""
    blocks, rows, outputs, points, elements = gradients.shape
    flat = gradients.reshape(-1, points, elements)
    form = table_of(forms, flat.dtype, flat.device)[1]
    summands = (flat * torch.bmm(form.expand(flat.shape[0], -1, -1), flat)).sum(1)
    return summands.reshape(blocks, -1).sum(0).reshape(rows, outputs, elements)


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
