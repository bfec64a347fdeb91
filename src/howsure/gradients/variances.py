"""The variances of a prediction from an estimate: not negative, and with parts that add up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from howsure.deferred import changed, later, may_be_later
from howsure.gradients.covariances import semi_definite, with_variances
from howsure.gradients.details import at_least
from howsure.gradients.estimate import COMPARED, Estimate
from howsure.trees import has_values
from howsure.values.budget import Budget


@may_be_later("covariance", "linear_share", "budget")
@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of all rows and outputs, and where they come from.

    Attributes:
        data: Data variance, (rows, outputs).
        model: Model variance.
        standard_error: Of the std.
        covariance: Of the total, (rows, outputs, outputs).
        linear_share: The share of the variance that is first order.
        budget: The variance by source.
        notes: What a user should know.
        has_samples: Whether some rows were sampled.
    """

    data: Tensor
    model: Tensor
    standard_error: Tensor
    covariance: Tensor
    linear_share: Tensor
    budget: Budget
    notes: tuple[str, ...] = ()
    has_samples: bool = False

    @property
    def total(self) -> Tensor:
        """Of both, (rows, outputs)."""
        return self.data + self.model

    @classmethod
    def nothing(cls, plain: Tensor) -> Variances:  # (rows, outputs)
        """Without any source."""
        zero = torch.zeros_like(plain)
        budget = Budget((), (), plain.new_zeros(0, *plain.shape))
        return cls(zero, zero, zero, torch.diag_embed(zero), torch.ones_like(plain), budget)

    def scaled(self, factor: Tensor) -> Variances:  # (rows, 1)
        """Those of outputs whose variances are so many times as large."""
        own = factor.to(self.data)
        return changed(
            self,
            data=own * self.data,
            model=own * self.model,
            standard_error=own.sqrt() * self.standard_error,
            covariance=later(lambda: own[:, :, None] * self.covariance),
            budget=later(lambda: self.budget.scaled(own)),
        )

    def with_constant(self, value: float | Tensor) -> Variances:
        """With a constant variance of every output as part of the data variance."""
        if not isinstance(value, Tensor) and value == 0:
            return self
        constant = torch.as_tensor(value).to(self.data).expand_as(self.data).clone()
        return changed(
            self,
            data=self.data + constant,
            covariance=later(lambda: self.covariance + torch.diag_embed(constant)),
            budget=later(lambda: self.budget.with_constant(constant)),
        )


# Outputs at the points that vary by so much more than their gradients say have a step between them:
# a quantile of the chi-square distribution, one in 100,000 (Wilson & Hilferty 1931). Points in
# mirrored pairs count as a third of a degree of freedom each, which makes 10 times for 8 of them.
# Points that share masks say less, however many they are.
_QUANTILE, _FREEDOM, _WITH_MASKS = 4.26, 1 / 3, 8
# Gaussian masks for dropped units cost so much of their std (ResNet-20: 0.06 to 0.12, an MLP 0.03).
_BERNOULLI = 0.07
# A mean that the noise moves by so many std is worth a note.
SHIFT = 10


class PlainPasses(Protocol):
    """What passes without gradients say about some rows, given as indices."""

    def spread(self, rows: Tensor) -> Tensor:
        """The variance of the outputs over some further points, (rows, outputs)."""
        ...

    def replaced(self, rows: Tensor) -> Replaced:
        """The variances by sampling."""
        ...


@dataclass(frozen=True, eq=False)
class Replaced:
    """Variances and the error of the std of some rows by sampling, (rows, outputs).

    `covariance` is that of all outputs, (rows, outputs, outputs), `linear_share` the share of the
    variance that is first order.
    """

    rows: Tensor
    data: Tensor
    model: Tensor
    error: Tensor
    covariance: Tensor
    linear_share: Tensor


def variances_of(found: Estimate, by_samples: Replaced | None = None) -> Variances:
    """The variances of an estimate, and by samples of rows of which it says nothing.

    Where gradients at different points contradict each other an inner product, and with it an
    estimate, can be negative by chance: a part that is counts as 0.
    """
    data, model = _kept(found, by_samples)
    by_masks = (2 * _BERNOULLI * model).square() if found.sources.active else 0.0
    error = _error_of_std(found.squared_error + by_masks, data + model)
    if by_samples is not None:
        error = error.index_copy(0, by_samples.rows, by_samples.error)
    return Variances(
        data,
        model,
        error,
        later(lambda: _with_sampled_covariance(found, by_samples)),
        later(lambda: _with_sampled_share(found, by_samples)),
        later(lambda: _budget(found, _kept(found, by_samples))),
    )


def _with_sampled_covariance(found: Estimate, by_samples: Replaced | None) -> Tensor:
    covariance = _covariance(found, _kept(found, by_samples))
    if by_samples is None or covariance.shape[1] == 1:
        return covariance
    variance = by_samples.data + by_samples.model
    sampled = with_variances(by_samples.covariance.to(covariance), variance.to(covariance))
    return covariance.index_copy(0, by_samples.rows, sampled)


def _with_sampled_share(found: Estimate, by_samples: Replaced | None) -> Tensor:
    share = found.linear_share
    if by_samples is None:
        return share
    return share.index_copy(0, by_samples.rows, by_samples.linear_share.to(share))


def _kept(found: Estimate, by_samples: Replaced | None) -> tuple[Tensor, Tensor]:
    """Data and model variance; nobody else's tensors."""
    data, model = found.data_var.relu(), found.model_var.relu()
    if by_samples is None:
        return data, model
    rows, new = by_samples.rows, (by_samples.data, by_samples.model)
    return data.index_copy(0, rows, new[0]), model.index_copy(0, rows, new[1])


def are_usual(found: Estimate, own: Variances, plain: Tensor) -> bool:  # (rows, outputs)
    """Whether all rows pass all checks with room to spare; else they are looked at one by one."""
    values, variance = found.sums.values, own.total
    if found.blocks >= COMPARED or plain.shape != variance.shape or not has_values(variance):
        return False
    spread, gap = values.var / ((1 - 1 / values.count) * _step(_points(found))), values.mean - plain
    room = variance - torch.addcmul(spread, gap, gap, value=SHIFT**-2)
    least, most = room.aminmax()
    return float(least) > 0 and float(most) < math.inf


def resampled(
    found: Estimate, own: Variances, passes: PlainPasses, *, every: bool = False
) -> Variances:
    """The variances with samples in place of estimates that contradict the outputs.

    These are rows of which nothing is left, or whose outputs vary far more than their gradients
    say; and those with an output that is flat at all points, and is not at further ones. Or they
    are `every` row, if asked for.
    """
    whole = torch.arange(len(own.data), device=own.data.device)
    rows = whole if every else _doubtful(found, own.total, passes)
    if not len(rows):
        return own
    more = "" if found.blocks >= COMPARED else MORE_POINTS
    note = RESAMPLED.format(count=len(rows), total=len(own.data)) + more
    return changed(variances_of(found, passes.replaced(rows)), notes=(note,), has_samples=True)


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
    most = torch.maximum(_step(_points(found)) * variance, rounding) * (values.count - 1)
    missed, flat = values.var * values.count > most, variance == 0
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


def _points(found: Estimate) -> float | Tensor:
    """How many points the outputs are compared at."""
    return _WITH_MASKS if found.sources.active else found.sums.values.count


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
    spread = found.sums.details.spread
    error = (found.squared_error + spread.standard_error.square()).sqrt()
    # One in some 100,000 by chance: a quantile of Student's distribution, roughly.
    limit = 4.5 * (1 + 8 / at_least(1.0, spread.count - 1))
    is_far = (spread.mean - variance).abs() > limit * error + rounding
    return is_far & torch.as_tensor(spread.count >= COMPARED // 2, device=is_far.device)


def _error_of_std(squared: Tensor, variance: Tensor) -> Tensor:
    """d std = d var / (2 std); where the variance is 0 and its error too, 0."""
    return (squared / (variance + variance.logical_not())).sqrt() / 2


def _covariance(found: Estimate, kept: tuple[Tensor, Tensor]) -> Tensor:
    """The nearest covariance matrix to that of the estimate with the variances that were kept."""
    variance = kept[0] + kept[1]
    if variance.shape[1] == 1:
        return variance[:, :, None]
    eye = torch.eye(variance.shape[1], dtype=variance.dtype, device=variance.device)
    covariance = found.data_covariance + found.model_covariance
    return semi_definite(torch.where(eye > 0, torch.diag_embed(variance), covariance))


def _budget(found: Estimate, kept: tuple[Tensor, Tensor]) -> Budget:
    """The variance by source; its parts add up to what was kept of data and model variance."""
    sources = found.sources
    inputs, masks = len(sources.inputs), len(sources.active)
    data, model = _Shared(found.data_var, kept[0]), _Shared(found.model_var, kept[1])
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
