"""Held-out inputs judged by a posterior over masks that has not seen them.

The posterior is made from unlabelled inputs of the kind that the network was trained on, or, where
there are none, from the held-out inputs in folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.fit.inputs import check_finite, unseen_inputs
from howsure.methods.gradients import (
    NoGradientsError,
    cannot_use,
    examine,
    gradients_at_input,
)
from howsure.posterior.laplace import RIDGE, RIDGE_OF_FEW, Gram, Posterior
from howsure.posterior.local_error import LocalError, Nearby
from howsure.progress import progress
from howsure.setup import Setup

FEWEST = 50
FOLDS = 5
Batches = Sequence[tuple[Any, Tensor]]


@dataclass(frozen=True, eq=False)
class Judged:
    """Held-out inputs with what their variance is made of, all (inputs, outputs).

    Attributes:
        mean: The prediction.
        error: Its squared error.
        data: The sensor's variance.
        m: What the masks leave open.
        target: The targets.
        local: The error near each input; 0 without labelled training rows.
        distance: Squared, to the nearest training row, (inputs, 1); 0 likewise.
    """

    mean: Tensor
    error: Tensor
    data: Tensor
    m: Tensor
    target: Tensor
    local: Tensor
    distance: Tensor

    @staticmethod
    def joined(parts: Sequence[Judged]) -> Judged:
        """All inputs of several batches; an error if there is none to learn from."""
        names = [each.name for each in fields(Judged)]
        found = Judged(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
        if not bool(found.error.any()):
            raise ValueError(
                "The held-out targets are the model's own predictions, up to rounding, so there is "
                "no error to learn from; give the true values."
            )
        return found


def squared_error(target: Tensor, mean: Tensor) -> Tensor:
    """In double precision; 0 where a target is the prediction up to the rounding of its type."""
    gap = (target.double() - mean.double()).abs()
    rounding = 4 * torch.finfo(mean.dtype).eps * mean.double().abs()
    return torch.where((gap <= rounding) & mean.isfinite(), 0.0, gap.square())


@dataclass(frozen=True, eq=False)
class Known:
    """The posterior for new inputs, and for held-out ones that have taken part in it.

    Attributes:
        posterior: From all known inputs; `None` if masks are left out.
        folds: Cross-fitted: those that have not seen the held-out inputs of a fold.
        local_error: By labelled training rows, where there were any.
    """

    posterior: Posterior | None
    folds: tuple[Posterior, ...] | None = None
    local_error: LocalError | None = None

    @classmethod
    def of(
        cls, setup: Setup, batches: Batches, train_inputs: object, *, show: bool = False
    ) -> Known:
        """From unlabelled inputs, or from the held-out ones in folds."""
        if train_inputs is not None:
            return cls(_from_training(setup, batches, train_inputs, show).posterior(RIDGE))
        grams = _by_fold(setup, batches, show)
        rest = [_sum(grams[:k] + grams[k + 1 :]) for k in range(len(grams))]
        folds = tuple(each.posterior(RIDGE_OF_FEW) for each in rest)
        return cls(_sum(grams).posterior(RIDGE_OF_FEW), folds)

    def judged(self, setup: Setup, number: int, x: object, target: Tensor) -> Judged:
        """A held-out batch, each row by a posterior that has not seen it."""
        nearby = self.local_error
        watch = self.posterior is not None
        try:
            found = examine(setup, x, watch=watch, features=nearby is not None)
        except NoGradientsError as error:
            raise cannot_use(str(error)) from error
        flat = target.reshape(len(found.mean), -1).double()
        if flat.shape != found.mean.shape:
            raise ValueError(
                f"The targets have shape {tuple(target.shape)}, and the model predicts "
                f"{found.mean.shape[1]} numbers for each of {len(found.mean)} inputs."
            )
        m = torch.zeros_like(flat)
        if self.posterior is not None:
            assert found.slopes is not None
            m = self._m(found.slopes, number)
        near = Nearby(torch.zeros_like(flat), torch.zeros_like(flat[:, :1]))
        if nearby is not None and found.features is not None:
            near = nearby.at(found.features)
        mean, data = found.mean.double(), found.variances.data.double()
        error = squared_error(flat, found.mean)
        parts = (mean, error, data, m, flat, near.error, near.squared_distance)
        return Judged(*parts)

    def _m(self, z: Tensor, number: int) -> Tensor:
        assert self.posterior is not None
        if self.folds is None:
            return self.posterior.predictive_variance(z)
        fold = folds_of(len(z), number)
        each = torch.stack([posterior.predictive_variance(z) for posterior in self.folds])
        return each.gather(0, fold[None, :, None].expand(1, *each.shape[1:]))[0]


def folds_of(count: int, number: int) -> Tensor:
    """The fold of every row of a batch."""
    return (torch.arange(count) + number) % FOLDS


def _sum(grams: Sequence[Gram]) -> Gram:
    total = grams[0]
    for each in grams[1:]:
        total = total + each
    return total


def _by_fold(setup: Setup, batches: Batches, show: bool) -> list[Gram]:
    grams: list[Gram] = []
    for number, (x, _) in enumerate(progress(batches, show, "masks")):
        z = gradients_at_input(setup, x)
        if not grams:
            whole = Gram()
            whole.add(z)
            grams = [Gram(whole.scale) for _ in range(FOLDS)]
        fold = folds_of(len(z), number)
        for k, gram in enumerate(grams):
            gram.add(z[fold == k])
    return grams


def _from_training(setup: Setup, batches: Batches, inputs: object, show: bool) -> Gram:
    gram, unseen = Gram(), unseen_inputs(inputs, batches, setup)
    for x in progress(unseen, show, "masks"):
        z = gradients_at_input(setup, x)
        check_finite([z], "gradients at training inputs")
        gram.add(z)
    if gram.count < FEWEST:
        raise ValueError(
            f"There are {gram.count} training inputs, and the posterior needs at least {FEWEST}, "
            "better some hundred."
        )
    return gram
