"""The variances of a prediction from an estimate: not negative, and with parts that add up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from howsure.gradients.estimate import COMPARED, Estimate
from howsure.values.budget import Budget
from howsure.values.trees import has_values


@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of all rows and outputs, and where they come from.

    Attributes:
        data: Data variance, (rows, outputs).
        model: Model variance.
        covariance: Of the total, (rows, outputs, outputs).
        standard_error: Of the std.
        linear_share: The share of the variance that is first order.
        budget: The variance by source.
        notes: What a user should know.
    """

    data: Tensor
    model: Tensor
    covariance: Tensor
    standard_error: Tensor
    linear_share: Tensor
    budget: Budget
    notes: tuple[str, ...] = ()

    @classmethod
    def nothing(cls, plain: Tensor) -> Variances:  # (rows, outputs)
        """Without any source."""
        zero = torch.zeros_like(plain)
        budget = Budget((), (), plain.new_zeros(0, *plain.shape))
        covariance = torch.diag_embed(zero)
        return cls(zero, zero, covariance, zero, torch.ones_like(plain), budget)

    def scaled(self, factor: Tensor) -> Variances:  # (rows, 1)
        """Those of outputs whose variances are so many times as large."""
        own = factor.to(self.data)
        return replace(
            self,
            data=own * self.data,
            model=own * self.model,
            covariance=own[:, :, None] * self.covariance,
            standard_error=own.sqrt() * self.standard_error,
            budget=self.budget.scaled(own),
        )

    def with_constant(self, value: float | Tensor) -> Variances:
        """With a constant variance of every output as part of the data variance."""
        if not isinstance(value, Tensor) and value == 0:
            return self
        constant = torch.as_tensor(value).to(self.data).expand_as(self.data)
        return replace(
            self,
            data=self.data + constant,
            covariance=self.covariance + torch.diag_embed(constant),
            budget=self.budget.with_constant(constant),
        )


# Outputs at the points that vary by so much more than their gradients say have a step between them:
# a quantile of the chi-square distribution, one in 100,000 (Wilson & Hilferty 1931). Points in
# mirrored pairs count as a third of a degree of freedom each, which makes 10 times for 8 of them.
# Points that share masks say less, however many they are.
_QUANTILE, _FREEDOM, _WITH_MASKS = 4.26, 1 / 3, 8


class PlainPasses(Protocol):
    """What passes without gradients say about some rows, given as indices."""

    def spread(self, rows: Tensor) -> Tensor:
        """The variance of the outputs over some further points, (rows, outputs)."""
        ...

    def replaced(self, rows: Tensor) -> Replaced:
        """The variances by sampling."""
        ...


def variances_of(found: Estimate, passes: PlainPasses, *, every: bool = False) -> Variances:
    """The variances of an estimate; of `every` row by sampling, if asked for.

    Where gradients at different points contradict each other an inner product, and with it an
    estimate, can be negative by chance: a part that is counts as 0. Rows of which nothing is left,
    or whose outputs vary far more than their gradients say, are sampled instead; so are those with
    an output that is flat at all points, and is not at further ones.
    """
    covariances = found.data_covariance, found.model_covariance
    raw = [each.diagonal(dim1=1, dim2=2) for each in covariances]
    data, model = (each.clamp(min=0) for each in raw)
    total = data + model
    error = _error_of_std(found.standard_error, total)
    notes = ()
    rows = _doubtful(found, total, passes)
    if every:
        rows = torch.arange(len(total), device=total.device)
    if len(rows):
        new = passes.replaced(rows)
        data, model = data.index_copy(0, rows, new.data), model.index_copy(0, rows, new.model)
        total, error = data + model, error.index_copy(0, rows, new.error)
        more = "" if found.blocks >= COMPARED else MORE_POINTS
        notes = (RESAMPLED.format(count=len(rows), total=len(data)) + more,)
    return Variances(
        data,
        model,
        _with_variances(covariances, total),
        error,
        found.linear_share,
        _budget(found, raw, (data, model)),
        notes,
    )


@dataclass(frozen=True, eq=False)
class Replaced:
    """Variances and the error of the std by sampling, (rows, outputs)."""

    data: Tensor
    model: Tensor
    error: Tensor


RESAMPLED = (
    "{count} of {total} inputs were sampled: the gradients at their points contradict each other "
    "or the outputs."
)
MORE_POINTS = " More points, by `tolerance=0.05` or `samples=64`, may need no sampling."


def _doubtful(found: Estimate, variance: Tensor, passes: PlainPasses) -> Tensor:  # (some rows,)
    """The rows whose outputs vary, but their gradients say nothing or far less.

    A trace has none, and can only tell that there may be some.
    """
    values = found.sums.values
    rounding = (20 * torch.finfo(found.dtype).eps * values.mean).square()
    # All rows have as many points, unless a tolerance asks for more.
    points = found.blocks * found.sources.design.points
    if found.sources.active:
        points = _WITH_MASKS
    elif found.blocks >= COMPARED:
        points = values.count
    step = _step(points)
    most = torch.maximum(step * variance, rounding) * (values.count - 1)
    missed, flat = values.squares > most, variance == 0
    if found.blocks >= COMPARED:
        missed = missed | _disagrees(found, variance, rounding)
    if not has_values(variance):
        note_doubt(missed | flat)
        return torch.zeros(0, dtype=torch.long)
    doubtful = missed.any(1)
    rows = (flat.any(1) & ~doubtful).nonzero()[:, 0]
    if len(rows):
        moves = passes.spread(rows) > rounding[rows]
        doubtful[rows] = (moves & flat[rows]).any(1)
    return doubtful.nonzero()[:, 0]


def _step(points: float | Tensor) -> Any:
    width = 2 / (9 * _FREEDOM * points)
    return (1 - width + _QUANTILE * width**0.5) ** 3


_doubts: ContextVar[list[Tensor] | None] = ContextVar("doubts", default=None)


@contextmanager
def doubts_noted() -> Iterator[list[Tensor]]:
    """Inside, traces add numbers to the list that are not 0 where rows have to be looked at."""
    noted: list[Tensor] = []
    token = _doubts.set(noted)
    try:
        yield noted
    finally:
        _doubts.reset(token)


def note_doubt(doubtful: Tensor) -> None:
    """Adds to the list, if there is one, whether any of these rows and outputs are doubtful."""
    noted = _doubts.get()
    if noted is not None and doubtful.numel():
        noted.append(doubtful.to(torch.float32).max())


def _disagrees(found: Estimate, variance: Tensor, rounding: Tensor) -> Tensor:
    """Whether the outputs at the points have another variance than their gradients say.

    The quadrature is made for functions that are smooth, or have few kinks, within the noise.
    """
    spread = found.sums.spread
    error = (found.standard_error.square() + spread.standard_error.square()).sqrt()
    # One in some 100,000 by chance: a quantile of Student's distribution, roughly.
    limit = 4.5 * (1 + 8 / (spread.count - 1).clamp(min=1))
    is_far = (spread.mean - variance).abs() > limit * error + rounding
    return is_far & (spread.count >= COMPARED // 2)


def _error_of_std(error: Tensor, variance: Tensor) -> Tensor:
    """d std = d var / (2 std); where the variance is 0 and its error too, 0."""
    std = variance.sqrt()
    return torch.where(error > 0, error / (2 * torch.where(std > 0, std, 1.0)), 0.0)


def _with_variances(parts: tuple[Tensor, Tensor], variance: Tensor) -> Tensor:
    """The nearest covariance matrix to the sum of two with these variances."""
    if variance.shape[1] == 1:
        return variance[:, :, None]
    eye = torch.eye(variance.shape[1], dtype=variance.dtype, device=variance.device)
    return semi_definite(torch.where(eye > 0, torch.diag_embed(variance), parts[0] + parts[1]))


def semi_definite(covariance: Tensor) -> Tensor:
    """The nearest matrix without negative eigenvalues, with the same variances."""
    # A row that is not finite has no eigenvalues; that it is not is said by its variances.
    numbers = torch.where(covariance.isfinite(), covariance, 0.0)
    values, vectors = torch.linalg.eigh((numbers + numbers.mT) / 2)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    mended = root @ root.mT
    wanted = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    found = mended.diagonal(dim1=1, dim2=2)
    scale = (wanted / torch.where(found > 0, found, 1.0)).sqrt()
    return mended * scale[:, :, None] * scale[:, None, :]


def with_variances(covariance: Tensor, variance: Tensor) -> Tensor:
    """The covariance scaled to these variances; where it had none, outputs that vary alone."""
    was = covariance.diagonal(dim1=1, dim2=2)
    factor = torch.where(was > 0, variance / torch.where(was > 0, was, 1.0), 0.0).sqrt()
    scaled = covariance * factor[:, :, None] * factor[:, None, :]
    return scaled + torch.diag_embed(torch.where(was > 0, 0.0, variance))


def _budget(found: Estimate, raw: list[Tensor], kept: tuple[Tensor, Tensor]) -> Budget:
    """The variance by source; its parts add up to what was kept of data and model variance."""
    sources = found.sources
    inputs, masks = len(sources.inputs), len(sources.active)
    data, model = (_Shared(was, now) for was, now in zip(raw, kept, strict=True))
    own = found.by_source
    rows = [data.part(each, inputs) for each in own[:inputs]]
    rows += [model.part(each, masks) for each in own[inputs:]]
    maps = {
        noisy.name: data.part(each.movedim(2, 0), inputs * each.shape[2])
        .movedim(0, 2)
        .reshape(*each.shape[:2], *noisy.root.shape)
        for noisy, each in zip(sources.inputs, found.elements, strict=True)
        if noisy.root.is_diagonal
    }
    kinds = ("input",) * inputs + ("dropout",) * masks
    return Budget(sources.names, kinds, torch.stack(rows), maps)


class _Shared:
    """A variance that was estimated as a sum of parts, and what was kept of it."""

    def __init__(self, was: Tensor, now: Tensor) -> None:
        self.is_same = has_values(now) and torch.equal(was, now)
        self.was, self.now = was, now

    def part(self, estimated: Tensor, count: int) -> Tensor:  # (..., rows, outputs)
        """What was kept of one of `count` parts.

        Where a sum was not positive its parts are meaningless: equal ones take their place.
        """
        if self.is_same:
            return estimated
        factor = self.now / torch.where(self.was > 0, self.was, 1.0)
        return torch.where(self.was > 0, estimated * factor, self.now / max(1, count))
