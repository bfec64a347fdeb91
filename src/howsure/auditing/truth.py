"""Monte Carlo as truth: the plain network with sampled noise and masks, and how sure it is itself.

Each mask sees two noises (as in `howsure.methods.noise_sampling`): half their squared
difference is data variance, their covariance is model variance.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.auditing.case import Case
from howsure.methods.passes import Pass, no_gradients
from howsure.multipliers import Multiply, draw_uniforms, masks
from howsure.noise import sample_of
from howsure.progress import progress

# 2,000 passes know a std to 1.6 %, 100 to 7 %.
TARGET, LEAST = 2000, 100
# What remains of the budget is for the intervals.
_END = 0.97
# Masks and noise of the truth are other draws than those of any method.
_STREAM = 2**21


class Clock:
    """Seconds since the audit began, against its time limit; `None` for no limit."""

    def __init__(self, limit: float | None) -> None:
        self.limit = math.inf if limit is None else limit
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return time.perf_counter() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the time is spent."""
        return self.seconds >= share * self.limit


@dataclass(frozen=True, eq=False)
class Spread:
    """A variance found by sampling, and its standard error; (inputs, outputs) each."""

    var: Tensor
    error: Tensor

    @property
    def log_std_error(self) -> Tensor:
        """Standard error of log(std); infinite where no variance was found."""
        return torch.where(self.var > 0, self.error / (2 * self.var), math.inf)


@dataclass(frozen=True, eq=False)
class Truth:
    """What Monte Carlo found.

    Attributes:
        mean: Mean of the outputs, (inputs, outputs).
        mean_error: Its standard error.
        total: Total variance.
        data: What the noise causes; `None` unless there is noise and dropout.
        model: What the masks cause; likewise.
        samples: Passes through the network.
    """

    mean: Tensor
    mean_error: Tensor
    total: Spread
    data: Spread | None
    model: Spread | None
    samples: int


def monte_carlo(case: Case, clock: Clock, *, samples: int | None, seed: int, show: bool) -> Truth:
    """The truth from exactly `samples` passes, or from as many as fit: at least 100."""
    paired = case.noisy and case.dropped
    per_round = 2 if paired else 1
    rounds = (TARGET if samples is None else samples) // per_round
    least = rounds if samples is not None else LEAST // per_round
    drawn = Draws(case, seed)
    rows: list[Tensor] = []
    with no_gradients():
        for index in progress(range(rounds), show, "audit: Monte Carlo"):
            if index >= least and clock.past(_END):
                break
            rows.append(drawn.at(index, per_round))
    return found(torch.stack(rows).double().cpu())


class Draws:
    """Passes of the plain network, each with new noise, and new masks, for every input its own."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.seed = (seed + 1) * _STREAM
        self.generator = torch.Generator().manual_seed(self.seed)
        self.sites = case.setup.sites(case.x) if case.dropped else ()

    def at(self, index: int, count: int) -> Tensor:  # (count, inputs, outputs)
        """`count` passes with the masks of this index."""
        setup, case = self.case.setup, self.case
        batch = None if setup.shared_masks else case.inputs
        drawn = draw_uniforms(self.sites, 1, self.seed + index, batch=batch)
        rates = setup.rates(self.sites) if self.sites else ()
        chosen = [None if mask is None else mask[0] for mask in masks(drawn, rates)]
        rows = []
        for _ in range(count):
            noisy = sample_of(setup.noise, case.x, self.generator, batch_dim=setup.batch_dim)
            with Multiply(setup.model, self.sites, chosen):
                rows.append(case.picked(Pass(setup, noisy).plain()))
        return torch.stack(rows)


def found(
    draws: Tensor,  # (rounds, 1 or 2, inputs, outputs)
) -> Truth:
    """Moments and their standard errors; the two of a round share their mask."""
    rounds, count = draws.shape[:2]
    if not bool(draws.isfinite().all()):
        raise ValueError("The plain network's output contains NaN or infinity for noisy inputs.")
    centre = draws.mean((0, 1))
    moved = draws - centre
    of_mean = draws.mean(1).var(0) / rounds
    # What the estimated centre takes away is the variance of that centre.
    total = _spread(moved.square().mean(1), of_mean)
    data = model = None
    if count == 2:
        data = _spread((draws[:, 0] - draws[:, 1]).square() / 2, torch.zeros_like(of_mean))
        model = _spread(moved[:, 0] * moved[:, 1], of_mean)
    return Truth(centre, of_mean.sqrt(), total, data, model, rounds * count)


def _spread(terms: Tensor, missing: Tensor) -> Spread:
    """The mean of independent terms, which is a variance, and its standard error."""
    return Spread(terms.mean(0) + missing, terms.std(0) / len(terms) ** 0.5)
