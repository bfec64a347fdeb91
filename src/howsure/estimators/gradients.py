"""The variance of a function of standard normal numbers from its gradients at a few points.

For standard normal z, and z_t another with correlation t to it, Var F(z) is the integral over t
from 0 to 1 of E<grad F(z), grad F(z_t)>. A block of correlated points is a quadrature of that
integral: a weighted sum of the inner products of its gradients (docs/gradients.md).

Blocks of points are independent estimates, which are averaged; their spread, and what the halves of
a block say, give the standard error. The same pass shows whether a row's gradients can be relied
on: over a pair of mirror images a, -a the outputs must change by the integral of the slope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.estimators.designs import FEW_ELEMENTS, POINTS, Design, Forms
from howsure.trees import has_values, is_tracing

Rows = slice | Tensor
ALL = slice(None)

# Outputs that have a backward pass each.
MOST_OUTPUTS = 64
# Elements of sources that run at once: activations take some hundred times as much memory.
_ELEMENTS = 2**19
# Numbers of gradients that may be kept until they are asked for element by element: 256 kB.
_KEPT = 2**16
# What the insides of the blocks tell about their error counts as much as this many further blocks.
_INSIDE = 2
# Squared error of a variance that 8 points usually have, for slopes that vary by as much as they
# explain: 3 % of the std (23 kinds of networks, `benchmarks/honesty.py`).
_USUAL = (2 * 0.03) ** 2
# With a tolerance: blocks before a row may stop, and after which it stops in any case.
# Inner products over few numbers have tails of which the spread of eight blocks says too little: of
# an MLP on 24 numbers it stated 0.79 of the actual error. They take as many again.
FEWEST_BLOCKS = 8
MOST_BLOCKS = 2048
# From so many on, the outputs of neighboring blocks are compared with what the gradients say.
COMPARED = 8
# So many points have as many pairs of mirror images, of noise alone or at given multipliers.
MANY_POINTS = COMPARED * POINTS


class Function(Protocol):
    """F(z), row by row: what an estimator knows about a model with its noise and multipliers.

    Attributes:
        design: The points of a block.
        inputs: How many sources are sensors; the others are multipliers.
        watched: How many multipliers do not vary, and have their gradients wanted; they come last.
        elements: Random numbers of a row.
        rows: How many rows there are.
        may_choose_rows: Whether a call may leave rows out.
        shares_points: Whether all rows have the same points.
    """

    design: Design
    inputs: int
    watched: int
    elements: int
    rows: int
    may_choose_rows: bool
    shares_points: bool

    def __call__(self, z: Sequence[Tensor], rows: Rows) -> Tensor:
        """The outputs, (points, rows, outputs), at z of every source, (points, rows, *shape)."""
        ...

    def differentiate(self, z: Sequence[Tensor], rows: Rows) -> Derivatives:
        """The same outputs, with their gradients with respect to z."""
        ...

    def points(self, blocks: range, rows: int, part: int, *, plain: bool) -> list[Tensor]:
        """z of every source for some blocks, with z = 0 in front if `plain`."""
        ...


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Outputs, (points, rows, outputs), and gradients by source, (outputs, points, rows, d)."""

    values: Tensor
    gradients: list[Tensor]

    def after(self, plain: Derivatives, rows: Rows) -> Derivatives:
        """The same with the first point of others, of these rows, in front."""
        values = torch.cat([plain.values[:1, rows], self.values])
        pairs = zip(plain.gradients, self.gradients, strict=True)
        return Derivatives(values, [torch.cat([p[:, :1, rows], g], 1) for p, g in pairs])

    def first_point(self) -> Derivatives:
        """A copy of what the first point says."""
        return Derivatives(self.values[:1], [g[:, :1].clone() for g in self.gradients])


def differentiate(
    function: Callable[[Sequence[Tensor], Rows], Tensor], points: Sequence[Tensor], rows: Rows
) -> Derivatives:
    """One forward pass at all points, and one backward pass for every output."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [z.detach().requires_grad_() for z in points]
        values = function(leaves, rows)
        gradients = backward(values, leaves)
    return Derivatives(values.detach(), [g.flatten(3) for g in gradients])


def backward(values: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of every output, (outputs, *leaf's shape); values are (..., outputs).

    Rows and points are independent, so that one backward pass serves all of them.
    """
    outputs = values.shape[-1]
    if not values.requires_grad:
        return [z.new_zeros(outputs, *z.shape) for z in leaves]
    ones = _ones_like(values)
    if outputs == 1:
        gradients = torch.autograd.grad(values, leaves, ones, materialize_grads=True)
        return [gradient[None] for gradient in gradients]
    one_hot = torch.eye(outputs, dtype=values.dtype, device=values.device)
    by_output = [
        torch.autograd.grad(
            values, leaves, ones * row, retain_graph=k < outputs - 1, materialize_grads=True
        )
        for k, row in enumerate(one_hot)
    ]
    return [torch.stack(column) for column in zip(*by_output, strict=True)]


def _ones_like(values: Tensor) -> Tensor:
    """Ones; small ones are kept from call to call, but in a trace, which has shapes of its own."""
    if is_tracing() or values.numel() > _KEPT:
        return torch.ones_like(values)
    return _ones(values.shape, values.dtype, values.device)


@functools.lru_cache(maxsize=64)
def _ones(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.ones(shape, dtype=dtype, device=device)


@dataclass(frozen=True, eq=False)
class Running:
    """Count, mean and mean squared deviation of some numbers, for every row and output.

    The count is a tensor, (rows, 1), where rows differ.
    """

    count: float | Tensor
    var: Tensor
    mean: Tensor

    @staticmethod
    def of(numbers: Tensor, shape: tuple[int, int]) -> Running:  # (rows * outputs, numbers)
        """Statistics over the last axis, in the shape (rows, outputs)."""
        var, mean = torch.var_mean(numbers, 1, correction=0)
        return Running(float(numbers.shape[1]), var.reshape(shape), mean.reshape(shape))

    def __add__(self, other: Running) -> Running:
        """Those of both (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        share, gap = other.count / at_least(1.0, count), other.mean - self.mean
        var = self.var + share * (other.var - self.var) + share * (1 - share) * gap.square()
        return Running(count, var, self.mean + gap * share)

    def by_row(self, move: Callable[[Tensor], Tensor]) -> Running:
        """The same after a function that moves rows."""
        count = self.count
        if not isinstance(count, Tensor):
            count = self.mean.new_full((len(self.mean), 1), count)
        return Running(move(count), move(self.var), move(self.mean))

    @property
    def standard_error(self) -> Tensor:
        """Of the mean; infinite for a single number."""
        return (self.var / at_least(0.0, self.count - 1)).sqrt().nan_to_num(nan=torch.inf)


def at_least(least: float, count: float | Tensor) -> float | Tensor:
    """The count, clamped from below."""
    return count.clamp(min=least) if isinstance(count, Tensor) else max(least, count)


@dataclass(frozen=True, eq=False)
class Sums:
    """What blocks of points say about rows, summed over blocks; rows come first everywhere.

    Attributes:
        variance: The total variances by single blocks.
        by_kind: Variance and its first-order part by kind of source, sensors and multipliers,
            (rows, outputs, kinds, 2).
        gaps: Squared errors of the total variance that the halves of each block show.
        moves: Outputs minus the plain ones, averaged over a block, over blocks of even and of odd
            number, (rows, 2, outputs).
        changes: Six sums of squares over blocks, points or pairs of mirror images for each kind of
            source, (rows, outputs, kinds, 6): the average difference of a block from the plain
            output; differences from it; changes over a pair; what the slopes say about these; what
            they leave unexplained; and how much they vary.
        spread: The variances that outputs at equal places of two blocks show, which share nothing,
            if they are compared.
        watched: Gradients with respect to watched multipliers at all points, (rows, outputs, d).
    """

    variance: Running
    by_kind: Tensor
    gaps: Tensor
    moves: Tensor
    changes: Tensor
    spread: Running | None = None
    watched: Tensor | None = None

    def __add__(self, other: Sums) -> Sums:
        """More blocks of the same rows."""
        return self._merge(lambda one, two: one + two, other)

    def by_row(self, move: Callable[[Tensor], Tensor]) -> Sums:
        """The same after a function that moves rows."""
        return self._merge(lambda s: s.by_row(move) if isinstance(s, Running) else move(s))

    def _merge(self, merge: Callable[..., Any], *others: Sums) -> Sums:
        merged = {}
        for field in fields(self):
            values = [getattr(sums, field.name) for sums in (self, *others)]
            # A single block is compared with none.
            values = [value for value in values if value is not None]
            if values:
                is_alone = len(values) == 1 and others
                merged[field.name] = values[0] if is_alone else merge(*values)
        return Sums(**merged)

    @staticmethod
    def joined(parts: Sequence[Sums]) -> Sums:
        """All rows of several, which have as many blocks."""

        def join(*columns: Any) -> Any:
            if isinstance(columns[0], Tensor):
                return torch.cat(columns)
            var, mean = (torch.cat([getattr(r, n) for r in columns]) for n in ("var", "mean"))
            return Running(columns[0].count, var, mean)

        return parts[0] if len(parts) == 1 else parts[0]._merge(join, *parts[1:])


@dataclass(frozen=True, eq=False)
class Products:
    """What the gradients of a pass say in detail, summed over its blocks, for all rows.

    Attributes:
        covariances: Between the outputs, for every source, over blocks of even and of odd number,
            (rows, 2, outputs * outputs).
        elements: Variances by element of every sensor, (rows, outputs, elements).
    """

    covariances: list[Tensor]
    elements: list[Tensor]


@dataclass(frozen=True, eq=False)
class Estimate:
    """The variance of every row and output, by where it comes from.

    Attributes:
        derivatives: F(0) and its gradients, as the first of its points.
        evidence: What the blocks of the only pass say, or the sums over the blocks of all passes.
        passes: What computes the products of the gradients, for every pass.
        design: The points of a block.
        inputs: How many sources are sensors.
        varying: How many sources there are.
        most_blocks: Of the row that has most.
        dtype: Of the outputs.
    """

    derivatives: Derivatives
    evidence: Blocks | Sums
    passes: list[Callable[[], Products]]
    design: Design
    inputs: int
    varying: int
    most_blocks: int
    dtype: torch.dtype

    @cached_property
    def sums(self) -> Sums:
        """Over the blocks of all passes."""
        return _sums_of(self.evidence)

    def _mean(self, sums: Tensor) -> Tensor:  # (rows, ...)
        """The average over the blocks of every row."""
        count = self.sums.variance.count
        if isinstance(count, Tensor):
            count = count.reshape(-1, *(1,) * (sums.dim() - 1))
        return sums / count

    @property
    def plain(self) -> Tensor:
        """F(0), (rows, outputs)."""
        return self.derivatives.values[0]

    @property
    def points(self) -> float | Tensor:
        """How many points a row has; (rows, 1) where rows differ."""
        if isinstance(self.evidence, Blocks):
            return float(self.most_blocks * self.design.points)
        return self.sums.variance.count * self.design.points

    @property
    def most_points(self) -> int:
        """Of the row that has most."""
        return self.most_blocks * self.design.points

    @property
    def outputs(self) -> int:
        """How many outputs a row has."""
        return self.plain.shape[1]

    @cached_property
    def products(self) -> Products:
        """Those of all passes; computed when they are asked for."""
        parts = [products() for products in self.passes]

        def add(columns: Iterable[Sequence[Tensor]]) -> list[Tensor]:
            return [torch.stack(list(column)).sum(0) for column in columns]

        return Products(
            add(zip(*(part.covariances for part in parts), strict=True)),
            add(zip(*(part.elements for part in parts), strict=True)),
        )

    @cached_property
    def by_source(self) -> list[Tensor]:
        """Variances, (rows, outputs) for each source."""
        step = self.outputs + 1
        return [self._mean(c[..., ::step].sum(1)) for c in self.products.covariances]

    @property
    def total(self) -> Tensor:
        """Of all sources, (rows, outputs)."""
        evidence = self.evidence
        return evidence.variance if isinstance(evidence, Blocks) else evidence.variance.mean

    @property
    def data_and_model_var(self) -> tuple[Tensor, Tensor]:
        """Due to the sensors, and due to the multipliers, (rows, outputs) each."""
        total = self.total
        if self.varying == self.inputs:
            return total, torch.zeros_like(total)
        if not self.inputs:
            return torch.zeros_like(total), total
        data, model = self._mean(self.sums.by_kind[..., 0]).unbind(2)
        return data, model

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Of the data and of the model, (rows, outputs, outputs)."""
        data, model = (self._mean(c.sum(1)) for c in self._covariance_sums())
        return data, model

    def _covariance_sums(self) -> tuple[Tensor, Tensor]:  # (rows, 2, outputs, outputs)
        by_source, inputs = self.products.covariances, self.inputs
        shape = (*by_source[0].shape[:2], self.outputs, self.outputs)
        nothing = by_source[0].new_zeros(shape)
        data = sum((c.reshape(shape) for c in by_source[:inputs]), nothing)
        return data, sum((c.reshape(shape) for c in by_source[inputs:]), nothing)

    def halves(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Mean, data and model covariance by the blocks of even and of odd number.

        Two independent estimates show the error of what is made of them. Empty for a single block.
        """
        if self.most_blocks == 1:
            return []
        # Those of a row are numbered from 0.
        blocks = torch.as_tensor(self.sums.variance.count).to(self.total).reshape(-1, 1)
        count = torch.cat([(blocks / 2).ceil(), (blocks / 2).floor().clamp(min=1)], 1)[:, :, None]
        means = self.plain[:, None] + self.sums.moves / count
        data, model = (c / count[..., None] for c in self._covariance_sums())
        return list(zip(means.unbind(1), data.unbind(1), model.unbind(1), strict=True))

    @cached_property
    def shift(self) -> Tensor:
        """By what the outputs at all points differ from the plain ones, on average."""
        return self._mean(self.sums.moves.sum(1))

    @property
    def mean(self) -> Tensor:
        """Of the outputs at all points, (rows, outputs)."""
        return self.plain + self.shift

    @cached_property
    def values_var(self) -> Tensor:
        """Of the outputs at all points about their mean, (rows, outputs)."""
        square = self._mean(self.sums.changes[..., 0, 1]) / self.design.points
        return (square - self.shift.square()).relu()

    @property
    def watched(self) -> Tensor:
        """Mean gradients with respect to the watched multipliers, (rows, outputs, d)."""
        assert self.sums.watched is not None
        return self._mean(self.sums.watched) / self.design.points

    @property
    def linear_share(self) -> Tensor:
        """The first-order share of the variance, between 0 and 1; 1 where there is none."""
        share = self._mean(self.sums.by_kind[..., 1].sum(2)) / self.total
        return torch.where(self.total > 0, share.clamp(0, 1), 1.0)

    def by_element(self) -> list[Tensor]:
        """Variances by element of every sensor, (rows, outputs, elements)."""
        return [self._mean(sums) for sums in self.products.elements]

    @cached_property
    def squared_error(self) -> Tensor:
        """Of the total variance, (rows, outputs).

        With few blocks the average of the squared errors between blocks, with one degree of freedom
        less than blocks, and within them, which counts as `_INSIDE` further ones; and, since few
        blocks agree by chance too often, what is usual for slopes that vary as much.
        """
        variance = self.sums.variance
        if self.most_blocks >= FEWEST_BLOCKS:
            return variance.standard_error.square()
        count = variance.count
        both = variance.var + self.sums.gaps * (_INSIDE / (count * count))
        usual = _USUAL * self.roughness * variance.mean.square()
        return both / (count - 1 + _INSIDE) + usual

    @property
    def roughness(self) -> Tensor:  # (rows, outputs)
        """How much slopes vary over the noise, as a share of what they explain; at most 1."""
        changes = self.sums.changes
        sums = changes[:, :, 0] if changes.shape[2] == 1 else changes.sum(2)
        explained, variation = sums[..., 3], sums[..., 5]
        return (variation / explained.clamp(min=torch.finfo(sums.dtype).tiny)).clamp(max=1)

    def is_dominated(self, share: float) -> Tensor:  # (rows, outputs)
        """Whether one number of the sensors has more than a share of their squared gradient."""
        parts = [g[:, 0] for g in self.derivatives.gradients[: self.inputs]]
        gradient = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        largest = gradient.abs().amax(2)
        return (largest > share**0.5 * torch.linalg.vector_norm(gradient, dim=2)).T


def estimate(
    function: Function,
    points: int,
    *,
    tolerance: float | None = None,
    chunk: int | None = None,
) -> Estimate:
    """The estimate from a number of points, or from as many as each row needs.

    Args:
        function: What varies.
        points: How many, rounded down to whole blocks; one block at least.
        tolerance: Largest relative standard error of any std; `None` takes `points` as they are.
        chunk: How many points run at once.
    """
    blocks = max(1, points // function.design.points)
    if tolerance is not None:
        is_large = function.elements > FEW_ELEMENTS
        blocks = max(blocks, FEWEST_BLOCKS if is_large else 2 * FEWEST_BLOCKS)
    passes = _Passes(function, chunk, compare=blocks >= COMPARED)
    evidence = passes.run(None, range(blocks))
    if tolerance is not None:
        evidence = _sums_of(evidence)
        while blocks < MOST_BLOCKS:
            rows = (~is_precise(evidence.variance, tolerance)).nonzero()[:, 0]
            if len(rows) == 0:
                break
            evidence = evidence + _sums_of(passes.run(rows, range(blocks, 2 * blocks)))
            blocks *= 2
    return Estimate(
        passes.plain,
        evidence,
        passes.products,
        function.design,
        function.inputs,
        len(passes.plain.gradients) - function.watched,
        blocks,
        passes.plain.values.dtype,
    )


def _sums_of(evidence: Blocks | Sums) -> Sums:
    return evidence.sums if isinstance(evidence, Blocks) else evidence


def is_precise(variance: Running, tolerance: float) -> Tensor:  # (rows,)
    """Whether a row's largest standard error, with its own uncertainty, is below the tolerance."""
    doubt = 1 + 1 / (2 * (variance.count - 1)) ** 0.5
    # The relative error of a std is half that of its variance.
    reached = variance.standard_error * doubt <= 2 * tolerance * variance.mean
    # No number of points makes a std of what is not finite.
    return (reached | (variance.var == 0) | ~variance.var.isfinite()).all(1)


class _Passes:
    """Runs blocks of points, as many at once as fit into memory, and sums up what they say.

    Attributes:
        plain: F(0) and its gradients, once a pass has run; of all rows.
        products: What computes the products of the gradients, for every pass.
    """

    def __init__(self, function: Function, chunk: int | None, *, compare: bool) -> None:
        self.function = function
        self.chunk = chunk
        self.compare = compare
        self._plain: list[Derivatives] = []
        self.products: list[Callable[[], Products]] = []

    @cached_property
    def plain(self) -> Derivatives:
        """The parts for some rows each, joined."""
        if len(self._plain) == 1:
            return self._plain[0]
        return Derivatives(
            torch.cat([part.values for part in self._plain], 1),
            [torch.cat(c, 2) for c in zip(*(p.gradients for p in self._plain), strict=True)],
        )

    def run(self, rows: Tensor | None, blocks: range) -> Blocks | Sums:
        """The sums over blocks for all rows, (rows, ...); those of others than `rows` are 0.

        Where one pass does it all: what it says of every block, since sums may not be needed.
        """
        function, count = self.function, len(blocks)
        size = function.design.points
        block = max(1, function.elements) * size
        at_once = self.chunk // size if self.chunk else _ELEMENTS // block
        rows_at_once = function.rows
        if is_tracing():
            at_once = max(1, at_once) if self.chunk else count
        else:
            at_once = max(1, min(count, at_once))
            if self.compare:  # Blocks are compared two by two.
                at_once = max(2, at_once // 2 * 2)
            rows_at_once = max(1, _ELEMENTS // (block * at_once))
        can_choose = function.may_choose_rows
        if rows is None and at_once >= count and (rows_at_once >= function.rows or not can_choose):
            return self._pass(blocks, 0, ALL, function.rows, counted=None)
        total: Sums | None = None
        for start in range(0, count, at_once):
            some = blocks[start : start + at_once]
            pieces = enumerate(_pieces(function, rows, rows_at_once))
            parts = [self._pass(some, part, *piece, counted=rows).sums for part, piece in pieces]
            sums = Sums.joined(parts)
            if rows is not None and not can_choose:
                sums = sums.by_row(lambda s: s[rows])
            total = sums if total is None else total + sums
        assert total is not None
        return total if rows is None else total.by_row(_scatter(rows, function.rows))

    def _pass(
        self, blocks: range, number: int, rows: Rows, count: int, counted: Tensor | None
    ) -> Blocks:
        """What some blocks say about some rows; the first pass of a row has F(0) as well.

        Where no row can be left out, `counted` are those that are meant.
        """
        function = self.function
        is_first = blocks[0] == 0
        part = 0 if function.shares_points else number
        z = function.points(blocks, count, part, plain=is_first)
        at = function.differentiate(z, rows)
        is_known = has_values(at.values)
        is_large = is_known and sum(map(Tensor.numel, at.gradients)) > _KEPT
        if is_first:
            # A view of large gradients would keep all of them in memory.
            self._plain.append(at.first_point() if is_large else at)
        else:
            at = at.after(self.plain, rows)
            z = [torch.cat([torch.zeros_like(normals[:1]), normals]) for normals in z]
        products = self._products(at, blocks, rows, counted)
        # Small gradients are kept until someone asks; large ones are summed up at once.
        computed = products() if is_large else None
        self.products.append(products if computed is None else lambda: computed)
        return Blocks.of(function, at, z, blocks, compare=self.compare, has_values=is_known)

    def _products(
        self, at: Derivatives, blocks: range, rows: Rows, counted: Tensor | None
    ) -> Callable[[], Products]:
        """What computes the products of the gradients of a pass."""
        function = self.function
        varying = at.gradients[: len(at.gradients) - function.watched]

        # Without `self`, which keeps these functions: a cycle would live until it is collected.
        def place(sums: Tensor) -> Tensor:
            if isinstance(rows, Tensor):
                return _scatter(rows, function.rows)(sums)
            if rows != ALL:
                places = torch.arange(function.rows, device=sums.device)[rows]
                return _scatter(places, function.rows)(sums)
            return sums if counted is None else _scatter(counted, function.rows)(sums[counted])

        def products() -> Products:
            data, model, inputs = function.design.data, function.design.model, function.inputs
            at_points = [g[:, 1:] for g in varying]
            covariances = [
                _covariances(g, data if i < inputs else model, blocks)
                for i, g in enumerate(at_points)
            ]
            elements = [_by_element(g, data) for g in at_points[:inputs]]
            return Products(list(map(place, covariances)), list(map(place, elements)))

        return products


def _scatter(rows: Tensor, count: int) -> Callable[[Tensor], Tensor]:
    """Puts rows in their places among all, the others 0."""
    return lambda s: s.new_zeros(count, *s.shape[1:]).index_copy(0, rows, s)


def _pieces(function: Function, rows: Tensor | None, size: int) -> Iterator[tuple[Rows, int]]:
    """The rows of each pass, and how many: all of them if a pass cannot leave any out."""
    count = function.rows
    if not function.may_choose_rows or (rows is None and size >= count):
        yield ALL, count
    elif rows is None:
        for start in range(0, count, size):
            yield slice(start, start + size), min(size, count - start)
    else:
        for some in rows.split(size):
            yield some, len(some)


@dataclass(frozen=True, eq=False)
class Blocks:
    """What a pass says about every block of its points.

    Attributes:
        shape: Rows and outputs.
        blocks: Their numbers.
        forms: Of the sensors, if there are any, and of the multipliers.
        numbers: Of each of these, (rows * outputs, blocks, numbers); see `Forms.table`.
        moves: Outputs minus the plain ones, (rows * outputs, blocks, points of a block), where
            blocks are compared.
        watched: Gradients with respect to watched multipliers, summed over the points.
        has_values: Whether the numbers can be looked at, as they cannot inside a trace.
    """

    shape: tuple[int, int]
    blocks: range
    forms: list[Forms]
    numbers: list[Tensor]
    moves: Tensor | None = None
    watched: Tensor | None = None
    has_values: bool = True

    @classmethod
    def of(
        cls,
        function: Function,
        at: Derivatives,
        z: Sequence[Tensor],
        blocks: range,
        *,
        compare: bool,
        has_values: bool,
    ) -> Blocks:
        """What derivatives at z say, the first of which is 0.

        All of it is linear in the inner products of the gradients and the points, and in the moves.
        """
        design, inputs = function.design, function.inputs
        varying = len(at.gradients) - function.watched
        count, (_, rows, outputs) = len(blocks), at.values.shape
        wide = torch.float64 if at.gradients[0].dtype == torch.float64 else torch.float32
        # Inner products between the points of one block or two: those of all would be too many.
        size = 2 - count % 2
        groups = count // size
        moves = _in_groups((at.values - at.values[:1]).to(wide).permute(1, 2, 0), groups)
        kinds = (design.data, range(inputs)), (design.model, range(inputs, varying))
        forms, numbers = [], []
        for form, sources in kinds:
            if not sources:
                continue
            of_sources = [
                _inner_products(at.gradients[i].to(wide), z[i].to(wide), groups) for i in sources
            ]
            products = of_sources[0] if len(of_sources) == 1 else torch.stack(of_sources).sum(0)
            columns = torch.cat([products, moves], 1)
            by_group = F.linear(columns, form.table(size, wide, moves.device))
            numbers.append(by_group.reshape(rows * outputs, count, -1))
            forms.append(form)
        return cls(
            (rows, outputs),
            blocks,
            forms,
            numbers,
            moves[:, 1:].reshape(rows * outputs, count, -1) if compare and count > 1 else None,
            _watched(at, varying) if function.watched else None,
            has_values,
        )

    @cached_property
    def variance(self) -> Tensor:  # (rows, outputs)
        """Their average estimate of the total variance."""
        first, *others = self.numbers
        total = first[..., 0].mean(1)
        for numbers in others:
            total = total + numbers[..., 0].mean(1)
        return total.reshape(self.shape)

    @property
    def sums(self) -> Sums:
        """The sums over all blocks."""
        variance = gap = 0.0
        changes = []
        for forms, numbers in zip(self.forms, self.numbers, strict=True):
            table = forms.group_table(numbers.dtype, numbers.device)
            changes.append(F.linear(numbers[..., 4:].square(), table).sum(1))
            of_kind, _, apart, both = numbers[..., :4].unbind(2)
            variance = variance + of_kind
            # A block whose halves are both 0 has no gradient at all.
            gap = gap + of_kind * apart / both.clamp(min=torch.finfo(both.dtype).tiny)
        assert isinstance(variance, Tensor) and isinstance(gap, Tensor)
        by_kind = [numbers[..., :2].sum(1) for numbers in self.numbers]
        average = self.numbers[-1][..., 4].T.reshape(-1, *self.shape)
        return Sums(
            Running.of(variance, self.shape),
            torch.stack(by_kind, 1).reshape(*self.shape, len(by_kind), -1),
            gap.square().sum(1).reshape(self.shape),
            _sum_by_parity(average, self.blocks),
            torch.stack(changes, 1).reshape(*self.shape, len(changes), -1),
            None if self.moves is None else _compare_blocks(self.moves, self.shape),
            self.watched,
        )


def _inner_products(gradients: Tensor, z: Tensor, groups: int) -> Tensor:
    """Inner products of the gradients of a source with each other, and with the points of a group.

    For n points (rows * outputs * groups, n * 2 * n), in the order of `Forms.table`. Gradients are
    (outputs, points, rows, d), and z is (points, rows, *shape).
    """
    by_row = gradients.permute(2, 0, 1, 3)
    points = z.flatten(2).transpose(0, 1).unsqueeze(1).expand(by_row.shape)
    by_group = _in_groups(by_row, groups)
    both = torch.cat([by_group, _in_groups(points, groups)], 1)
    return torch.bmm(by_group, both.mT).flatten(1)


def _in_groups(by_point: Tensor, groups: int) -> Tensor:
    """(rows, outputs, points, ...) as (rows * outputs * groups, points of a group, ...).

    The first point, z = 0, is in front of every group.
    """
    if groups == 1:
        return by_point.flatten(0, 1)
    first, others = by_point[:, :, None, :1], by_point[:, :, 1:].unflatten(2, (groups, -1))
    first = first.expand(-1, -1, groups, *(-1,) * (by_point.dim() - 2))
    return torch.cat([first, others], 3).flatten(0, 2)


def _covariances(gradients: Tensor, forms: Forms, blocks: range) -> Tensor:
    """Between all pairs of outputs, by one source, (rows, 2, outputs * outputs)."""
    by_block = _split_blocks(gradients, len(blocks))
    _, rows, outputs, points, _ = by_block.shape
    flat = by_block.flatten(2, 3).flatten(0, 1)
    gram = torch.bmm(flat, flat.mT).reshape(-1, outputs, points, outputs, points)
    variance = forms.variance.to(gram).flatten()
    numbers = gram.transpose(2, 3).flatten(3).flatten(1, 2) @ variance
    return _sum_by_parity(numbers.reshape(len(blocks), rows, -1), blocks)


def _by_element(gradients: Tensor, forms: Forms) -> Tensor:
    """The summands of the inner products, over all blocks: (rows, outputs, elements)."""
    points = len(forms.variance)
    by_block = _split_blocks(gradients, gradients.shape[1] // points)
    form = forms.variance.to(by_block)
    return torch.einsum("pq,brkpd,brkqd->rkd", form, by_block, by_block)


def _split_blocks(gradients: Tensor, blocks: int) -> Tensor:  # (outputs, points, rows, d)
    """Gradients as (blocks, rows, outputs, points of a block, d), no narrower than float32."""
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    outputs, count, rows, elements = wide.shape
    return wide.reshape(outputs, blocks, count // blocks, rows, elements).permute(1, 3, 0, 2, 4)


def _sum_by_parity(by_block: Tensor, blocks: range) -> Tensor:  # (blocks, rows, ...)
    """Sums over the blocks of even and of odd number, (rows, 2, ...)."""
    if len(blocks) == 2 and blocks[0] % 2 == 0:
        return by_block.transpose(0, 1)
    first = blocks[0] % 2
    even, odd = by_block[first::2].sum(0), by_block[1 - first :: 2].sum(0)
    return torch.stack([even, odd], 1)


def _compare_blocks(moves: Tensor, shape: tuple[int, int]) -> Running:
    """Half the squared difference of blocks, two by two, averaged over their points."""
    pairs = moves.shape[1] // 2
    gap = moves[:, 0 : 2 * pairs : 2] - moves[:, 1 : 2 * pairs : 2]
    return Running.of(gap.square().mean(2) / 2, shape)


def _watched(at: Derivatives, varying: int) -> Tensor:  # (rows, outputs, d)
    """Gradients with respect to watched multipliers, summed over the points of the blocks."""
    return torch.cat(at.gradients[varying:], 3)[:, 1:].sum(1).transpose(0, 1)


# Short lines through a noisy point: half their length in std of the noise, such that few of them
# have a kink, and how many; by how much the change over a line may differ from what the slope
# says, and on how many of them.
_SHORT, _LINES = 0.01, 6
_OFF, _MOST_OFF = 1 / 6, 4
# Sums of outputs that have a backward pass each.
_GROUPS = 8


def _groups(outputs: int) -> Tensor:  # (outputs, groups)
    """Few sums of many outputs, of two or three if that makes no more, with signs at random."""
    if outputs <= _GROUPS:
        return torch.eye(outputs)
    groups = min(_GROUPS, -(-2 * outputs // 5))
    signs = 2.0 * torch.randint(2, (outputs,), generator=torch.Generator().manual_seed(0)) - 1
    return signs[:, None] * F.one_hot(torch.arange(outputs) % groups, groups)


def hides_gradients(
    function: Function, rows: Rows, count: int
) -> Tensor:  # (kinds of sources, rows, groups)
    """Whether rows change over short lines otherwise than their gradients say.

    If so, the model does not tell its gradients, or all of them: a part is detached, or has a
    backward pass of its own. Many outputs are looked at in groups, with signs at random.
    """
    drawn = function.points(range(1 + _LINES), count, 0, plain=False)
    points = [z[:: function.design.points] for z in drawn]  # which share nothing
    base, directions = [z[:1] for z in points], [_SHORT * z[1:] for z in points]
    groups = values = torch.empty(0)
    hidden = []

    def grouped(z: Sequence[Tensor], rows: Rows) -> Tensor:
        nonlocal groups, values
        values = function(z, rows)
        groups = _groups(values.shape[2]).to(values)
        return values @ groups

    gradients = differentiate(grouped, base, rows).gradients
    values = values.detach()
    rounding = 8 * torch.finfo(values.dtype).eps * (values.abs() @ groups.abs())
    varying = len(points) - function.watched
    for kind in (range(function.inputs), range(function.inputs, varying)):
        if not kind:
            continue
        steps = [z if i in kind else 0 * z for i, z in enumerate(directions)]
        ends = [torch.cat([z + step, z - step]) for z, step in zip(base, steps, strict=True)]
        with torch.no_grad():
            forwards, backwards = (function(ends, rows) @ groups).double().chunk(2)
        change = (forwards - backwards) / 2  # (lines, rows, groups)
        slopes = [
            torch.einsum("krd,lrd->lrk", gradients[i][:, 0].double(), steps[i].flatten(2).double())
            for i in kind
        ]
        slope = torch.stack(slopes).sum(0)
        moved = torch.maximum(change.abs(), slope.abs())
        is_off = (change - slope).abs() > _OFF * moved + rounding
        hidden.append(is_off.sum(0) > _MOST_OFF)
    return torch.stack(hidden)


# Nodes on the line of a pair where its slope is looked at more closely.
_NODES = 8
# Squared errors of so fine a quadrature are a small share of the slopes' variance (0.04 where all
# of it is one kink).
_FINE = 0.08


def contradicts_on_lines(
    function: Function, rows: Tensor, share: float, blocks: int = 1
) -> Tensor:  # (rows, outputs)
    """Whether outputs change over the pairs of some blocks otherwise than the slopes between.

    The slopes are integrated by Gauss-Legendre quadrature; `share` of the squared change may be
    left unexplained.
    """
    nodes_of_row = _NODES * blocks * function.design.points * max(1, function.elements)
    at_once = max(1, _ELEMENTS // nodes_of_row)
    if function.may_choose_rows and len(rows) > at_once:
        pieces = rows.split(at_once)
        return torch.cat([contradicts_on_lines(function, r, share, blocks) for r in pieces])
    chosen, places = (rows, ALL) if function.may_choose_rows else (ALL, rows)
    count = len(rows) if function.may_choose_rows else function.rows
    points = function.points(range(blocks), count, 0, plain=False)
    middles = [(z[0::2] + z[1::2]) / 2 for z in points]
    halves = [(z[0::2] - z[1::2]) / 2 for z in points]
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    on_lines = [
        torch.cat([middle + node * half for node in nodes.tolist()])
        for middle, half in zip(middles, halves, strict=True)
    ]
    derivatives = differentiate(function, on_lines, chosen)
    slopes: Any = 0.0
    for gradient, half in zip(derivatives.gradients, halves, strict=True):
        along = half.flatten(2).repeat(_NODES, 1, 1)
        slopes = slopes + torch.linalg.vecdot(gradient, along)  # (outputs, nodes * pairs, rows)
    slopes = slopes.unflatten(1, (_NODES, -1)).double()
    weight = torch.as_tensor(weights, device=slopes.device)
    integral = torch.einsum("n,knpr->prk", weight, slopes)
    mean = integral.permute(2, 0, 1)[:, None] / 2
    variance = torch.einsum("n,knpr->rk", weight / 2, (slopes - mean).square())
    with torch.no_grad():
        ends = function(points, chosen).double()
    change = ends[0::2] - ends[1::2]
    rounding = (20 * torch.finfo(derivatives.values.dtype).eps * ends).square().sum(0)
    left = (change - integral).square().sum(0)
    # Over a line of length 2.
    allowed = _FINE * 4 * variance + share * change.square().sum(0) + rounding
    return (left > allowed)[places]
