"""The variances of a prediction from an estimate: not negative, and with parts that add up."""

from __future__ import annotations

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


def variances_of(found: Estimate) -> Variances:
    """The variances of an estimate.

    Where gradients at different points contradict each other an inner product, and with it an
    estimate, can be negative by chance. Such a part counts as 0; where nothing would be left
    although the outputs differ, the variance of the outputs at the points takes its place.
    """
    raw = [c.diagonal(dim1=1, dim2=2) for c in (found.data_covariance, found.model_covariance)]
    data, model = (each.clamp(min=0) for each in raw)
    values = found.sums.values
    spread = values.squares / (values.count - 1).clamp(min=1)
    rounding = 20 * torch.finfo(spread.dtype).eps * values.mean.abs()
    lost = (data + model <= 0) & (spread > rounding.square())
    has_noise = bool(found.sources.inputs)
    data = torch.where(lost, spread, data) if has_noise else data
    model = model if has_noise else torch.where(lost, spread, model)
    error = None
    if found.blocks > 1:
        error = _error_of_std(found.standard_error, data + model)
        error = torch.where(lost, spread.sqrt(), error)
    covariance = _with_variances(found.data_covariance + found.model_covariance, data + model)
    budget = _budget(found, raw, (data, model))
    notes = _notes(torch.stack([*raw, -lost.to(data.dtype)]))
    share = torch.where(lost, 0.0, found.linear_share)
    return Variances(data, model, covariance, error, share, budget, notes)


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


def _notes(parts: Tensor) -> tuple[str, ...]:
    """A note where a part came out negative, by more than rounding."""
    if not has_values(parts):
        return ()
    contradicted = int((parts < 0).any(0).sum())
    if not contradicted:
        return ()
    return (
        f"For {contradicted} of {parts[0].numel()} outputs the gradients at different points "
        "contradict each other, and a part of the variance came out negative; it counts as 0, and "
        "`std_error` is large. Take more points with `tolerance=0.05` or `samples=64`.",
    )


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
