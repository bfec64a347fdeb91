"""From gradients to variances: blocks of points are independent estimates, and are averaged.

Their spread gives the standard error, and with a tolerance each row takes as many as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.gradients.calls import ALL, Calls, Rows
from howsure.gradients.details import Running
from howsure.gradients.points import FEW_ELEMENTS
from howsure.gradients.sources import Sources, gradients_at
from howsure.gradients.sums import Sums, sums_of
from howsure.trees import is_tracing

# Elements of sources that run at once: activations take some hundred times as much memory.
_ELEMENTS = 2**19
# What the insides of the blocks tell about their error counts as much as this many further blocks.
_INSIDE = 2
# With a tolerance: blocks before a row may stop, and after which it stops in any case.
# Inner products over few numbers have tails of which the spread of eight blocks says too little: of
# an MLP on 24 numbers it stated 0.79 of the actual error. They take as many again.
FEWEST_BLOCKS = 8
MOST_BLOCKS = 2048
# From so many on, the outputs of neighbouring blocks are compared with what the gradients say.
COMPARED = 8


@dataclass(frozen=True, eq=False)
class Estimate:
    """The variance of every row and output, by where it comes from.

    Attributes:
        sums: Sums over the blocks.
        sources: What they are over.
        blocks: Of the row that has most.
        dtype: Of the network's outputs.
    """

    sums: Sums
    sources: Sources
    blocks: int
    dtype: torch.dtype

    def _each(self, sums: Tensor) -> Tensor:  # (rows, ...)
        """The average over the blocks of every row."""
        count = self.sums.variance.count
        if isinstance(count, Tensor):
            count = count.reshape(-1, *(1,) * (sums.dim() - 1))
        return sums / count

    @property
    def data_var(self) -> Tensor:
        """(rows, outputs)."""
        return self._of_kind(0)

    @property
    def model_var(self) -> Tensor:
        """(rows, outputs)."""
        return self._of_kind(1)

    def _of_kind(self, number: int) -> Tensor:  # (rows, outputs)
        kinds, mean = (self.sources.inputs, self.sources.active), self.sums.variance.mean
        if not kinds[number]:
            return torch.zeros_like(mean)
        return self._each(self.sums.details.by_kind)[:, number] if kinds[1 - number] else mean

    @property
    def data_covariance(self) -> Tensor:
        """(rows, outputs, outputs)."""
        return self._each(self.sums.details.data.sum(1))

    @property
    def model_covariance(self) -> Tensor:
        """(rows, outputs, outputs)."""
        return self._each(self.sums.details.model.sum(1))

    @property
    def by_source(self) -> Tensor:
        """(sources, rows, outputs)."""
        return self._each(self.sums.details.by_source).movedim(1, 0)

    @property
    def elements(self) -> list[Tensor]:
        """Of each noisy input, (rows, outputs, elements)."""
        return [self._each(each) for each in self.sums.details.elements]

    @property
    def watched(self) -> Tensor:
        """Mean gradients with respect to the watched multipliers, (rows, outputs, masks)."""
        return self._each(self.sums.details.watched) / self.sources.design.points

    @property
    def linear_share(self) -> Tensor:
        """The first-order share of the variance, between 0 and 1; 1 where there is none."""
        total = self.sums.variance.mean
        share = self._each(self.sums.details.linear) / total
        return torch.where(total > 0, share.clamp(0, 1), 1.0)

    @property
    def squared_error(self) -> Tensor:
        """Of the total variance, (rows, outputs), by the spread of the blocks and inside them.

        Few blocks agree by chance too often.
        """
        if self.blocks >= FEWEST_BLOCKS:
            return self.sums.variance.standard_error.square()
        # All rows have as many blocks.
        both = torch.add(self.sums.variance.var, self.sums.gaps, alpha=_INSIDE / self.blocks**2)
        return both / (self.blocks - 1 + _INSIDE)

    def halves(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Mean, data and model covariance of the blocks of even and of odd number.

        None if there are no odd ones: two independent estimates show the error of what is made
        of them.
        """
        if self.blocks == 1:
            return []
        sums, count = self.sums.details, self.sums.details.blocks.clamp(min=1)[:, :, None]
        means, data, model = (
            (each.flatten(2) / count).reshape(each.shape).unbind(1)
            for each in (sums.means, sums.data, sums.model)
        )
        return list(zip(means, data, model, strict=True))


def estimate(
    calls: Calls,
    sources: Sources,
    points: int,
    tolerance: float | None = None,
    chunk: int | None = None,
) -> Estimate:
    """The estimate from a number of points, or from as many as each row needs.

    Args:
        calls: The model at its input.
        sources: What is random.
        points: How many, rounded to whole blocks.
        tolerance: Largest relative standard error of any std; `None` takes `points` as they are.
        chunk: How many points run at once.
    """
    size = sources.design.points
    blocks = max(1, points // size)
    fewest = FEWEST_BLOCKS if sources.elements > FEW_ELEMENTS else 2 * FEWEST_BLOCKS
    blocks = blocks if tolerance is None else max(fewest, blocks)
    compare = blocks >= COMPARED
    total = _sums(calls, sources, None, range(blocks), chunk, compare=compare)
    while tolerance is not None and blocks < MOST_BLOCKS:
        rows = (~is_precise(total.variance, tolerance)).nonzero()[:, 0]
        if len(rows) == 0:
            break
        more = _sums(calls, sources, rows, range(blocks, 2 * blocks), chunk, compare=compare)
        total = total + more.scattered(rows, calls.count)
        blocks *= 2
    return Estimate(total, sources, blocks, calls.dtype)


def is_precise(variance: Running, tolerance: float) -> Tensor:  # (rows,)
    """Whether a row's largest standard error, with its own uncertainty, is below the tolerance."""
    doubt = 1 + 1 / (2 * (variance.count - 1)) ** 0.5
    # The relative error of a std is half that of its variance.
    reached = variance.standard_error * doubt <= 2 * tolerance * variance.mean
    # No number of points makes a std of what is not finite.
    return (reached | (variance.var == 0) | ~variance.var.isfinite()).all(1)


def _sums(
    calls: Calls,
    sources: Sources,
    rows: Tensor | None,
    blocks: range,
    chunk: int | None,
    *,
    compare: bool,
) -> Sums:
    """The sums of some blocks for some rows, or all, as many at once as fit into memory."""
    at_once, count = _sizes(calls, sources, len(blocks), chunk)
    inputs = len(sources.inputs)
    parts = []
    for some in _pieces(blocks, at_once):
        points = sources.drawn(some)
        columns = []
        for number, (chosen, size) in enumerate(_row_pieces(calls, rows, count)):
            if not calls.setup.shared_masks:
                points = sources.drawn(some, size, number)
            found = gradients_at(calls, sources, points, chosen, size)
            columns.append(sums_of(found, sources.design, inputs, some, compare=compare))
        parts.append(Sums.joined(columns))
    total = sum(parts[1:], parts[0])
    return total if rows is None or calls.layout == "folded" else total.chosen(rows)


def _sizes(calls: Calls, sources: Sources, blocks: int, chunk: int | None) -> tuple[int, int]:
    """How many blocks run at once, and how many rows; all of them inside a trace."""
    size = sources.design.points
    if is_tracing():
        return max(1, chunk // size) if chunk else blocks, calls.count
    block = max(1, sources.elements) * size
    at_once = max(1, min(blocks, chunk // size if chunk else _ELEMENTS // block))
    return at_once, max(1, _ELEMENTS // (block * at_once))


def _row_pieces(calls: Calls, rows: Tensor | None, size: int) -> Iterator[tuple[Rows, int]]:
    """The rows of each pass, and how many: all of them if a pass cannot leave any out."""
    count = calls.count
    if calls.layout != "folded" or (rows is None and size >= count):
        yield ALL, count
    elif rows is None:
        for start in range(0, count, size):
            yield slice(start, start + size), min(size, count - start)
    else:
        for some in rows.split(size):
            yield some, len(some)


def _pieces(blocks: range, size: int) -> Iterator[range]:
    for start in range(0, len(blocks), size):
        yield blocks[start : start + size]
