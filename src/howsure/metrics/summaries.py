"""What is remembered of data already seen: three values that can be merged.

`Sums` add, `Scatter` merges by the formula of Chan et al. (1979), `Values` concatenate. All hold
plain float64 tensors, so they can be saved, sent and gathered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

# Rows per block, in `Sums.over`.
_BLOCK = 8192

Self = TypeVar("Self", bound="Summary")


class Summary(Protocol):
    """A mergeable digest of data."""

    def merge(self: Self, other: Self) -> Self:
        """The summary of both parts of the data."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The content as plain tensors."""
        ...

    @classmethod
    def from_tensors(cls: type[Self], tensors: Mapping[str, Tensor]) -> Self:
        """The summary that `tensors()` came from."""
        ...


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums of scores, and the weight: enough for every mean."""

    total: Tensor  # (...)
    weight: Tensor  # (), or broadcasts to total

    @classmethod
    def of(
        cls,
        score: Tensor,  # (n, ...)
        weight: Tensor,  # (n,)
    ) -> Sums:
        """The sums over the first dimension."""
        return cls(torch.tensordot(weight, score, dims=1), weight.sum())

    @classmethod
    def over(
        cls,
        score: Callable[..., Tensor],  # (block, ...) of each column to (block, ...)
        weight: Tensor,  # (n,)
        *columns: Tensor,  # (n, ...)
    ) -> Sums:
        """The sums of `score(*columns)` by blocks, so that wide temporaries stay in the cache."""
        blocks = zip(*(x.split(_BLOCK) for x in (weight, *columns)), strict=True)
        return functools.reduce(Sums.merge, (Sums.of(score(*block), w) for w, *block in blocks))

    def mean(self) -> Tensor:
        """The total divided by the weight."""
        return self.total / self.weight

    def root_mean(self) -> Tensor:
        """The square root of the mean."""
        return self.mean().sqrt()

    def merge(self, other: Sums) -> Sums:
        """The sums over both parts of the data."""
        _mergeable(self.total, other.total)
        return Sums(
            self.total + other.total.to(self.total), self.weight + other.weight.to(self.weight)
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors `total` and `weight`."""
        return {"total": self.total, "weight": self.weight}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Sums:
        """The sums with this `total` and `weight`."""
        return cls(**tensors)


@dataclass(frozen=True, eq=False)
class Scatter:
    """Weight, mean and scatter matrix of several groups of vectors."""

    weight: Tensor  # ()
    mean: Tensor  # (groups, d)
    scatter: Tensor  # (groups, d, d), sum of weight (x - mean)(x - mean)^T

    @classmethod
    def of(
        cls,
        vectors: Tensor,  # (groups, n, d)
        weight: Tensor,  # (n,)
    ) -> Scatter:
        """The moments over the second dimension, centred before they are squared."""
        total, share = weight.sum(), weight.unsqueeze(1) / weight.sum()
        mean = (share * vectors).sum(1, keepdim=True)
        # Once more around that mean, whose rounding grows with n: a constant has scatter 0.
        mean = mean + (share * (vectors - mean)).sum(1, keepdim=True)
        centred = vectors - mean
        scatter = (share * centred).transpose(1, 2) @ centred * total
        return cls(total, mean.squeeze(1), scatter)

    def covariance(self) -> Tensor:  # (groups, d, d)
        """Scatter by weight: the maximum likelihood estimate."""
        return self.scatter / self.weight

    def merge(self, other: Scatter) -> Scatter:
        """The moments of the union (Chan, Golub & LeVeque 1979)."""
        _mergeable(self.mean, other.mean)
        weight = self.weight + other.weight.to(self.weight)
        shift = other.mean.to(self.mean) - self.mean
        share = other.weight.to(self.weight) / weight
        between = self.weight * share * shift.unsqueeze(-1) * shift.unsqueeze(-2)
        scatter = self.scatter + other.scatter.to(self.scatter) + between
        return Scatter(weight, self.mean + share * shift, scatter)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors `weight`, `mean` and `scatter`."""
        return {"weight": self.weight, "mean": self.mean, "scatter": self.scatter}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Scatter:
        """The scatter with this `weight`, `mean` and `scatter`."""
        return cls(**tensors)


@dataclass(frozen=True, eq=False)
class Values:
    """The values themselves, by name, for metrics that need all of them at once.

    Memory: 8 bytes for every entry of every column. Chunks are joined only when asked for, so
    that many small updates do not copy what came before.
    """

    chunks: tuple[dict[str, Tensor], ...]  # each (n, ...)

    def merge(self, other: Values) -> Values:
        """The values of both parts, one after the other."""
        return Values(self.chunks + other.chunks)

    def tensors(self) -> dict[str, Tensor]:
        """Every column, joined."""
        first = self.chunks[0]
        if len(self.chunks) == 1:
            return dict(first)
        for chunk in self.chunks:
            for name, column in first.items():
                _mergeable(column[0], chunk[name][0])
        return {
            name: torch.cat([chunk[name].to(column.device) for chunk in self.chunks])
            for name, column in first.items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Values:
        """The values whose joined columns these are."""
        return cls((dict(tensors),))


def _mergeable(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(
            f"Parts of shape {tuple(first.shape)} and {tuple(second.shape)} cannot be merged; "
            "use the same options and the same number of classes or components for every part."
        )
