"""Intervals and prediction sets with a guarantee: split conformal prediction.

The k-th smallest of n held-out scores, k = ceil((n + 1) * level), is at least as large as a new
score with probability `level`, as long as held-out and new data are exchangeable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from howsure.calibrate.calibrators import (
    CalibratedPrediction,
    Calibrator,
    Labels,
    Residuals,
    check_labels,
    check_uncalibrated,
    mean_and_var,
)
from howsure.errors import warn
from howsure.prediction import Prediction
from howsure.trees import TensorTree

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


@dataclass(frozen=True, eq=False, repr=False)
class GroupedScores(Calibrator):
    """What conformal calibrators share: the sorted scores of every group, and their quantiles.

    Attributes:
        scores: For each group, (points, ...), sorted along the points.
        labels: The groups' labels; `None` if there is one group for all.
    """

    scores: tuple[Tensor, ...]
    labels: tuple[Label, ...] | None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many held-out points each group has."""
        return tuple(len(scores) for scores in self.scores)

    def quantile(self, level: float, groups: Labels | None, count: int) -> Tensor:
        """The score that covers `level`, (1, ...) for all points or (count, ...) by group.

        Infinite, with a warning, for groups with too few scores.
        """
        needed = points_needed(level)
        if self.labels is None:
            if groups is not None:
                raise ValueError("The calibrator was fitted without groups; leave `groups` out.")
            (scores,) = self.scores
            if len(scores) < needed:
                raise ValueError(
                    f"A level of {level:g} needs at least {needed} held-out points; "
                    f"there are {len(scores)}."
                )
            return scores[rank(len(scores), level) - 1][None]
        if groups is None:
            raise ValueError(
                f"The calibrator was fitted by group; give `groups=`, the label of each of the "
                f"{count} inputs, out of {list(self.labels)}."
            )
        labels, members = _number_groups(groups, count)
        by_label = dict(zip(self.labels, self.scores, strict=True))
        quantiles, small = [], []
        for label in labels:
            scores = by_label.get(label, self.scores[0][:0])
            if len(scores) < needed:
                small.append(f"{label!r} has {len(scores)}")
                quantiles.append(torch.full_like(self.scores[0][0], torch.inf))
            else:
                quantiles.append(scores[rank(len(scores), level) - 1])
        if small:
            warn(
                f"A level of {level:g} needs {needed} held-out points in each group "
                f"({', '.join(small)}); with fewer, only an infinite interval is guaranteed to "
                "cover."
            )
        return torch.stack(quantiles)[members]

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with conformal intervals or sets; mean and variances stay.

        With groups, a note says up to which level each of them has finite intervals.
        """
        notes: tuple[str, ...] = ()
        if self.labels is not None:
            sizes = zip(self.labels, self.counts, strict=True)
            listed = ", ".join(f"{label!r} {n / (n + 1):.3g} (n = {n})" for label, n in sizes)
            notes = (f"Conformal intervals are finite up to the level: {listed}.",)
        return CalibratedPrediction.of(prediction, self, notes)


def sort_by_group(
    scores: Tensor,  # (n, ...)
    groups: Labels | None,
) -> tuple[tuple[Tensor, ...], tuple[Label, ...] | None]:
    """The sorted scores of every group, and the groups' labels; one group without labels."""
    if groups is None:
        return (scores.sort(dim=0).values,), None
    labels, members = _number_groups(groups, len(scores))
    return tuple(scores[members == i].sort(dim=0).values for i in range(len(labels))), labels


def _number_groups(groups: Labels, count: int) -> tuple[tuple[Label, ...], Tensor]:
    """The different labels in order, and which of them each of `count` inputs has, (count,)."""
    labels = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if labels.dtype.kind not in "biuU" or labels.ndim != 1:
        raise TypeError(
            f"`groups` has shape {labels.shape} and type {labels.dtype}; give a whole number or a "
            "string for each input."
        )
    if len(labels) != count:
        raise ValueError(f"`groups` has {len(labels)} labels for {count} inputs.")
    distinct, members = np.unique(labels, return_inverse=True)
    return tuple(distinct.tolist()), torch.from_numpy(members)


@dataclass(frozen=True, eq=False, repr=False)
class Conformal(GroupedScores):
    """Intervals mean -+ q * std that cover a new target with probability of at least `level`.

    q is the k-th smallest of the n held-out scores |target - mean| / std, with
    k = ceil((n + 1) * level) (Lei et al. 2018). However wrong the std is, this holds as
    long as held-out and new data are exchangeable; a better std gives narrower intervals. Over
    draws of the held-out data, coverage is distributed as Beta(k, n + 1 - k).

    Each output, that is each element of an input's prediction, has its own q, and is covered with
    that probability by itself; with `joint=True` all outputs of an input are covered at once. With
    groups (Vovk et al. 2003, "Mondrian") the promise holds within each group.

    Attributes:
        scores: For each group the sorted scores, `(n, *outputs)`, or `(n,)` if joint.
        labels: The groups' labels, `None` without groups.
        shape: The shape of one input's outputs.
        joint: Whether all outputs are covered at once.

    Examples:
        >>> mean, var = torch.zeros(99, 1), torch.ones(99, 1)
        >>> p = hs.Prediction(mean, var, torch.zeros_like(var))
        >>> target = torch.linspace(-3, 3, 99)[:, None]
        >>> conformal = hs.calibrate.Conformal.fit(p, target)
        >>> low, high = conformal(p).interval(0.9)
        >>> bool(low[0] < -2.6), bool(high[0] > 2.6)
        (True, True)
    """

    kind: ClassVar[str] = "conformal"
    shape: tuple[int, ...]
    joint: bool = False

    @classmethod
    def fit(
        cls,
        prediction: Prediction,
        target: Tensor,
        *,
        groups: Labels | None = None,
        joint: bool = False,
    ) -> Conformal:
        """The scores of held-out data.

        Args:
            prediction: Held-out predictions; a std of 0 is allowed.
            target: Their targets.
            groups: A label for each input, whole numbers or strings.
            joint: Cover all outputs of an input at once.
        """
        scores = Residuals.of(prediction, target).scores
        shape = tuple(scores.shape[1:])
        if joint:
            scores = scores.reshape(len(scores), -1).amax(1)
        return cls(*sort_by_group(scores, groups), shape, joint)

    def interval(
        self, prediction: Prediction, level: float = 0.95, *, groups: Labels | None = None
    ) -> tuple[Any, Any]:
        """Lower and upper end; infinite, with a warning, for groups too small for the level."""
        mean, _ = mean_and_var(prediction)
        if tuple(mean.shape[1:]) != self.shape:
            raise ValueError(
                f"The calibrator was fitted for outputs of shape {self.shape}; this prediction has "
                f"shape {tuple(mean.shape)}."
            )
        q = self.quantile(level, groups, len(mean)).to(mean)
        if self.joint:
            q = q.reshape(-1, *[1] * len(self.shape))
        return interval_around(prediction, q)


def interval_around(prediction: Prediction, reach: Tensor) -> tuple[object, object]:
    """The interval mean -+ reach * std, in the structure of the mean.

    An infinite reach covers everything, also where the std is 0.
    """
    mean, var = mean_and_var(prediction)
    width = torch.where(torch.isinf(reach), reach, reach * var.sqrt())
    rebuild = TensorTree(prediction.mean).unflatten
    return rebuild([mean - width]), rebuild([mean + width])


@dataclass(frozen=True, eq=False, repr=False)
class ConformalClasses(GroupedScores):
    """Prediction sets that cover the true class with probability of at least `level`.

    A class is in the set if 1 - p <= q, with q the k-th smallest held-out 1 - p of the true class,
    k = ceil((n + 1) * level) (Sadinle et al. 2019). If the probabilities are right, no sets with
    that coverage are smaller on average; a set may be empty, where no class is likely enough.
    Groups as in `Conformal`: labels are unknown in use, so derive groups from the input.

    Attributes:
        scores: For each group the sorted scores, `(n, ...)`.
        labels: The groups' labels, `None` without groups.
        classes: How many classes there are.

    Examples:
        >>> mean = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(10, 1)
        >>> p = hs.Prediction(mean, torch.zeros_like(mean), torch.zeros_like(mean))
        >>> target = torch.tensor([0, 1]).repeat(10)
        >>> calibrator = hs.calibrate.ConformalClasses.fit(p, target)
        >>> calibrator(p).sets(0.9)[:2]
        tensor([[ True, False],
                [False,  True]])
    """

    kind: ClassVar[str] = "conformal_classes"
    classes: int

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, groups: Labels | None = None
    ) -> ConformalClasses:
        """The scores of held-out class probabilities `(n, classes, ...)` and labels `(n, ...)`."""
        check_uncalibrated(prediction)
        probabilities = _probabilities(prediction).detach().cpu().double()
        target = check_labels(probabilities, target)
        scores = 1 - probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
        return cls(*sort_by_group(scores, groups), probabilities.shape[1])

    def sets(
        self, prediction: Prediction, level: float = 0.9, *, groups: Labels | None = None
    ) -> Tensor:
        """Which classes are in the set, `(batch, classes, ...)`, bool."""
        probabilities = _probabilities(prediction)
        if tuple(probabilities.shape[1:]) != (self.classes, *self.scores[0].shape[1:]):
            raise ValueError(
                f"The calibrator was fitted for {self.classes} classes and positions "
                f"{tuple(self.scores[0].shape[1:])}; this prediction has shape "
                f"{tuple(probabilities.shape)}."
            )
        q = self.quantile(level, groups, len(probabilities)).unsqueeze(1)
        # In float64 as in `fit`: rounding to float32 could push a score past its own quantile.
        return (1 - probabilities.double() <= q.to(probabilities.device)).detach()

    def interval(self, prediction: Prediction, level: float = 0.95) -> NoReturn:
        """An error: classes have no interval."""
        raise TypeError("Classes have no interval; use `.sets(level)`.")


def _probabilities(prediction: Prediction) -> Tensor:
    mean, _ = mean_and_var(prediction)
    if mean.dim() < 2:
        raise ValueError(
            f"Class probabilities have shape (batch, classes, ...), not {tuple(mean.shape)}."
        )
    # 1e-2: the rounding of bfloat16.
    if not float(mean.min()) >= 0 or not bool(((mean.sum(1) - 1).abs() < 1e-2).all()):
        raise ValueError(
            "The prediction holds no class probabilities (nonnegative, with sum 1 along dim 1); "
            'use `Uncertain(..., task="classification")`.'
        )
    return mean
