"""The variances of a prediction from an estimate: not negative, and with parts that add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.budget import Budget
from howsure.concrete import has_values
from howsure.gradients.classes import semi_definite
from howsure.gradients.estimate import Estimate


@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of all rows and outputs, and where they come from.

    Attributes:
        data: Data variance, (rows, outputs).
        model: Model variance.
        covariance: Of the total, (rows, outputs, outputs).
        standard_error: Of the std; `None` if there is only one block.
        linear_share: The share of the variance that is first order.
        budget: The variance by source.
        notes: What a user should know.
    """

    data: Tensor
    model: Tensor
    covariance: Tensor
    standard_error: Tensor | None
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


# Outputs at the points that vary by so much more than their gradients say have a step between them.
STEP = 10.0


def variances_of(found: Estimate, resample: Callable[[Tensor], Replaced]) -> Variances:
    """The variances of an estimate.

    Where gradients at different points contradict each other an inner product, and with it an
    estimate, can be negative by chance: a part that is counts as 0. Rows of which nothing is left,
    or whose outputs vary far more than their gradients say, are sampled instead.

    Args:
        found: The estimate.
        resample: Variances by sampling for some rows, given as indices.
    """
    raw = [c.diagonal(dim1=1, dim2=2) for c in (found.data_covariance, found.model_covariance)]
    data, model = (each.clamp(min=0) for each in raw)
    error = _error_of_std(found.standard_error, data + model) if found.blocks > 1 else None
    notes = ()
    rows = _doubtful(found, data + model)
    if len(rows):
        new = resample(rows)
        data, model = data.index_copy(0, rows, new.data), model.index_copy(0, rows, new.model)
        error = None if error is None else error.index_copy(0, rows, new.error)
        notes = (RESAMPLED.format(count=len(rows), total=len(data)),)
    covariance = found.data_covariance + found.model_covariance
    return Variances(
        data,
        model,
        _with_variances(covariance, data + model),
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
    "{count} of {total} inputs were sampled: the gradients at their points contradict each other, "
    "or miss a step. More points, by `tolerance=0.05` or `samples=64`, may need no sampling."
)


def _doubtful(found: Estimate, variance: Tensor) -> Tensor:  # (some rows,)
    """The rows whose outputs vary, but their gradients say nothing or far less; none in a trace."""
    if not has_values(variance):
        return torch.zeros(0, dtype=torch.long)
    values = found.sums.values
    spread = values.squares / (values.count - 1).clamp(min=1)
    rounding = 20 * torch.finfo(found.dtype).eps * values.mean.abs()
    missed = (spread > STEP * variance) & (spread > rounding.square())
    return missed.any(1).nonzero()[:, 0]


def _error_of_std(error: Tensor, variance: Tensor) -> Tensor:
    """d std = d var / (2 std); where the variance is 0 and its error too, 0."""
    std = variance.sqrt()
    return torch.where(error > 0, error / (2 * torch.where(std > 0, std, 1.0)), 0.0)


def _with_variances(covariance: Tensor, variance: Tensor) -> Tensor:
    """The nearest covariance matrix with these variances."""
    if variance.shape[1] == 1:
        return variance[:, :, None]
    eye = torch.eye(variance.shape[1], dtype=variance.dtype, device=variance.device)
    return semi_definite(torch.where(eye > 0, torch.diag_embed(variance), covariance))


def _budget(found: Estimate, raw: list[Tensor], kept: tuple[Tensor, Tensor]) -> Budget:
    """The variance by source; its parts add up to what was kept of data and model variance."""
    sources = found.sources
    inputs, masks = len(sources.inputs), len(sources.active)
    kinds = ("input",) * inputs + ("dropout",) * masks
    factors = [
        torch.where(was > 0, now / torch.where(was > 0, was, 1.0), 0.0)
        for was, now in zip(raw, kept, strict=True)
    ]
    # Where a sum was not positive its parts are meaningless: equal ones take their place.
    rest = [torch.where(was > 0, 0.0, now) for was, now in zip(raw, kept, strict=True)]
    rows = [
        each * factors[index >= inputs]
        + rest[index >= inputs] / max(1, masks if index >= inputs else inputs)
        for index, each in enumerate(found.by_source)
    ]
    maps = {
        noisy.name: _map(each, factors[0], rest[0] / inputs, noisy.root.shape)
        for noisy, each in zip(sources.inputs, found.elements, strict=True)
    }
    return Budget(sources.names, kinds, torch.stack(rows), maps)


def _map(
    elements: Tensor, factor: Tensor, rest: Tensor, shape: tuple[int, ...]
) -> Tensor:  # (rows, outputs, *shape)
    spread = elements * factor[:, :, None] + rest[:, :, None] / max(1, elements.shape[2])
    return spread.reshape(*elements.shape[:2], *shape)
