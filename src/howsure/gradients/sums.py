"""What is kept of blocks of points: sums that add up over blocks and line up over rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.deferred import later, may_be_later
from howsure.gradients.details import Details, Running, details_of
from howsure.gradients.points import Design, Forms, table_of
from howsure.gradients.sources import Gradients
from howsure.trees import has_values

# Numbers of gradients that may be kept until details are asked for: 256 kB.
_KEPT = 2**16


@may_be_later("details")
@dataclass(frozen=True, eq=False)
class Sums:
    """What some blocks say about some rows; rows come first everywhere.

    Attributes:
        variance: The blocks' total variances.
        values: The outputs at all points.
        gaps: Sum of the squared errors that the halves of each block show, (rows, outputs).
        details: What a prediction does not need by itself.
    """

    variance: Running
    values: Running
    gaps: Tensor
    details: Details

    def __add__(self, other: Sums) -> Sums:
        """More blocks of the same rows."""
        return _merged(operator.add, self, other)

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
        return parts[0] if len(parts) == 1 else _merged(_joined, *parts)

    def _by_row(self, function: Callable[[Tensor], Tensor]) -> Sums:
        def moved(each: Any) -> Any:
            return each.by_row(function) if isinstance(each, Running) else function(each)

        return _merged(moved, self)


def _merged(function: Callable[..., Any], *parts: Any) -> Any:
    """One of several: a function of every tensor and running mean of theirs."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(_merged(function, *each) for each in zip(*parts, strict=True))
    if not isinstance(first, Sums | Details):
        return function(*parts)
    names = [field.name for field in fields(first)]
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return type(first)(**{name: _merged(function, *each) for name, each in columns.items()})


def _joined(*parts: Any) -> Any:
    """The rows of all; they have as many blocks."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    var, mean = (torch.cat([getattr(part, name) for part in parts]) for name in ("var", "mean"))
    return Running(parts[0].count, var, mean)


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
    variance, gap = _total(_added(sensors), _added(masks))
    details = later(
        lambda: details_of(found, gradients, sensors, masks, design, numbers, compare=compare)
    )
    kept = sum(each.numel() for each in (*gradients, *(t.numbers for t in (*sensors, *masks))))
    is_large = found.watched is not None or kept > _KEPT
    # A program is the same for every batch size.
    if is_large and has_values(gap):
        details()
    values = found.values.to(gap.dtype)
    return Sums(
        Running(float(len(numbers)), *torch.var_mean(variance, 0, correction=0)),
        Running(float(values.shape[0]), *torch.var_mean(values, 0, correction=0)),
        gap.square().sum(0),
        details,
    )


class Told:
    """What the forms of a design say about some sources.

    Attributes:
        numbers: Of all pairs of outputs: covariance, its first-order part, by how much the halves
            of a block differ and their sum, (blocks, rows, outputs * outputs, 4).
        outputs: How many.
        variance: Of every output, (blocks, rows, outputs); then the others.
    """

    def __init__(self, numbers: Tensor, outputs: int) -> None:
        self.numbers, self.outputs = numbers, outputs
        own = numbers if outputs == 1 else numbers[:, :, :: outputs + 1]
        self.variance, self.linear, self.apart, self.both = own.unbind(3)

    @property
    def covariance(self) -> Tensor:
        """(blocks, rows, outputs, outputs)."""
        return self.numbers[..., 0].unflatten(2, (self.outputs, self.outputs))


def block_variances(found: Gradients, design: Design, inputs: int) -> Tensor:
    """The total variance by every block alone, (blocks, rows, outputs); no covariances."""
    parts = []
    for number, each in enumerate(found.by_source):
        forms = design.data if number < inputs else design.model
        gradients = _by_block(each, design.points)
        gram = gradients @ gradients.mT
        parts.append((gram * forms.variance.to(gram)).sum((3, 4)))
    return torch.stack(parts).sum(0)


def _by_block(gradients: Tensor, points: int) -> Tensor:
    """(blocks, rows, outputs, points, elements), in single precision or better."""
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    outputs, count, rows, elements = wide.shape
    return wide.reshape(outputs, count // points, points, rows, elements).permute(1, 3, 0, 2, 4)


def _told(gradients: Tensor, forms: Forms) -> Told:
    """What the inner products of one source's gradients say."""
    blocks, rows, outputs, points, elements = gradients.shape
    flat = gradients.reshape(blocks * rows, outputs * points, elements)
    gram = torch.bmm(flat, flat.mT)
    if outputs > 1:
        gram = gram.reshape(-1, outputs, points, outputs, points).transpose(2, 3)
    table = table_of(forms, gradients.dtype, gradients.device)[0]
    numbers = F.linear(gram.reshape(-1, points * points), table)
    return Told(numbers.reshape(blocks, rows, outputs * outputs, table.shape[0]), outputs)


def _added(sources: Sequence[Told]) -> Told | None:
    """The sum over sources; `None` if there are none."""
    if len(sources) < 2:
        return sources[0] if sources else None
    return Told(torch.stack([each.numbers for each in sources]).sum(0), sources[0].outputs)


def _total(*kinds: Told | None) -> tuple[Tensor, Tensor]:  # (blocks, rows, outputs) each
    """The variances by all blocks, and their errors."""
    first, *others = [each for each in kinds if each is not None]
    variance, gap = first.variance, _gap(first)
    for each in others:
        variance, gap = variance + each.variance, gap + _gap(each)
    return variance, gap


def _gap(told: Told) -> Tensor:
    """How far the halves of a block are apart: the error of a block."""
    # A block whose halves are both 0 has no gradient at all.
    return told.variance * told.apart / told.both.clamp(min=torch.finfo(told.both.dtype).tiny)
