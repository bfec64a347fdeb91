"""Conformal scores by group, and their finite-sample quantiles."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from howsure.calibrate.loader import Labels

Label = int | str


def rank(count: int, level: float) -> int:
    """ceil((count + 1) * level): which of the sorted scores covers `level`.

    In fractions, since 100 * 0.07 in floating point is above 7 and its ceiling 8.
    """
    return math.ceil((count + 1) * _fraction(level))


def points_needed(level: float) -> int:
    """The fewest held-out points with which an interval of this level is finite."""
    exact = _fraction(level)
    return math.ceil(exact / (1 - exact))


def _fraction(level: float) -> Fraction:
    if not 0 < level < 1:
        raise ValueError(f"The level must be between 0 and 1, not {level}.")
    exact = Fraction(level).limit_denominator(10**9)
    return exact if 0 < exact < 1 else Fraction(level)


@dataclass(frozen=True, eq=False)
class GroupedScores:
    """Sorted scores of every group.

    Attributes:
        scores: For each group, (points, ...), sorted along the points.
        labels: The groups' labels; `None` if there is one group for all.
    """

    scores: tuple[Tensor, ...]
    labels: tuple[Label, ...] | None

    @staticmethod
    def of(scores: Tensor, groups: Labels | None) -> GroupedScores:  # scores (n, ...)
        """The scores sorted, by group if there are labels."""
        if groups is None:
            return GroupedScores((scores.sort(dim=0).values,), None)
        each = as_labels(groups, len(scores))
        labels, members = _numbered(each)
        chosen = (scores[members == i].sort(dim=0).values for i in range(len(labels)))
        return GroupedScores(tuple(chosen), tuple(labels))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many held-out points each group has."""
        return tuple(len(scores) for scores in self.scores)

    def quantile(self, level: float, groups: Labels | None, count: int) -> Tensor:
        """The score that covers `level`, (1, ...) for all points or (count, ...) by group."""
        if self.labels is None:
            return self._of_all(level, groups)
        if groups is None:
            raise ValueError(
                f"The calibrator was fitted by group; give `groups=`, the label of each of the "
                f"{count} inputs, out of {list(self.labels)}."
            )
        known, members = _numbered(as_labels(groups, count))
        quantiles = torch.stack([self._of_group(label, level) for label in known])
        self._warn_if_infinite(known, level)
        return quantiles[members]

    def _of_all(self, level: float, groups: Labels | None) -> Tensor:
        if groups is not None:
            raise ValueError("The calibrator was fitted without groups; leave `groups` out.")
        (scores,) = self.scores
        if rank(len(scores), level) > len(scores):
            raise ValueError(
                f"A level of {level:g} needs at least {points_needed(level)} held-out points; "
                f"there are {len(scores)}."
            )
        return _ranked(scores, level)[None]

    def _of_group(self, label: Label, level: float) -> Tensor:
        assert self.labels is not None
        if label not in self.labels:
            return torch.full_like(self.scores[0][0], torch.inf)
        return _ranked(self.scores[self.labels.index(label)], level)

    def _warn_if_infinite(self, labels: Sequence[Label], level: float) -> None:
        assert self.labels is not None
        sizes = dict(zip(self.labels, self.counts, strict=True))
        small = {label: sizes.get(label, 0) for label in labels}
        small = {label: n for label, n in small.items() if rank(n, level) > n}
        if small:
            listed = ", ".join(f"{label!r} has {n}" for label, n in small.items())
            warnings.warn(
                f"A level of {level:g} needs {points_needed(level)} held-out points in each group "
                f"({listed}); with fewer only an infinite interval is sure to cover.",
                stacklevel=4,
            )

    def notes(self) -> tuple[str, ...]:
        """For each group the largest level at which its intervals are finite."""
        if self.labels is None:
            return ()
        sizes = zip(self.labels, self.counts, strict=True)
        listed = ", ".join(f"{label!r} {n / (n + 1):.3g} (n = {n})" for label, n in sizes)
        return (f"Conformal intervals are finite up to the level: {listed}.",)


def as_labels(groups: Labels, count: int) -> list[Label]:
    """One label for each of `count` points, whole numbers or strings."""
    if isinstance(groups, Tensor):
        if groups.dim() != 1 or groups.dtype.is_floating_point:
            raise TypeError(
                f"`groups` is a tensor of shape {tuple(groups.shape)} and {groups.dtype}; it must "
                "be one whole number for each input."
            )
        groups = groups.tolist()
    labels = [label if isinstance(label, str) else _whole(label) for label in groups]
    if len(labels) != count:
        raise ValueError(f"`groups` has {len(labels)} labels for {count} inputs.")
    return labels


def _numbered(each: Sequence[Label]) -> tuple[list[Label], Tensor]:
    """The different labels, and which of them each point has, (points,)."""
    numbers: dict[Label, int] = {}
    members = [numbers.setdefault(label, len(numbers)) for label in each]
    return list(numbers), torch.tensor(members)


def _whole(label: object) -> int:
    try:
        return label.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(
            f"The label {label!r} of `groups` must be a whole number or a string."
        ) from None


def _ranked(scores: Tensor, level: float) -> Tensor:
    """The score at the rank of `level`; infinite where there are too few."""
    k = rank(len(scores), level)
    return scores[k - 1] if k <= len(scores) else torch.full_like(scores[0], torch.inf)
