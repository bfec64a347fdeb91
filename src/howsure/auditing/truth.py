"""Monte Carlo as reference: the plain network with sampled noise and masks, with its own error.

Where both are random, pairs of samples share a mask: half their squared difference is data
variance, their covariance is model variance.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.auditing.case import Case
from howsure.methods.passes import no_gradients, own_random_numbers
from howsure.progress import progress
from howsure.trees import TensorTree

# 2,000 samples know a std to 1.6 %, 100 to 7 %.
TARGET, LEAST = 2000, 100
# What remains of the time is for the intervals.
_END = 0.97
# Samples that run together: so many, or fewer where inputs or outputs are large.
_AT_ONCE = 100
_ELEMENTS = 2**20
# Masks and noise of the reference are other draws than those of any method.
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
    """A variance by sampling, and its standard error; (inputs, outputs) each."""

    var: Tensor
    error: Tensor

    @classmethod
    def of(cls, terms: Tensor, correction: Tensor | float = 0.0) -> Spread:
        """The mean of independent terms, which is a variance, and its standard error."""
        return cls(terms.mean(0) + correction, terms.std(0) / len(terms) ** 0.5)

    @property
    def log_std_error(self) -> Tensor:
        """Standard error of log(std); infinite where there is no variance."""
        return torch.where(self.var > 0, self.error / (2 * self.var), math.inf)


@dataclass(frozen=True, eq=False)
class Truth:
    """What Monte Carlo says.

    Attributes:
        mean: Mean of the outputs, (inputs, outputs).
        mean_error: Its standard error.
        total: Total variance.
        data: What the noise causes; `None` unless there is noise and dropout.
        model: What the masks cause; likewise.
        samples: How many.
    """

    mean: Tensor
    mean_error: Tensor
    total: Spread
    data: Spread | None
    model: Spread | None
    samples: int

    @classmethod
    def of(cls, draws: Tensor) -> Truth:  # (units, 1 or 2, inputs, outputs)
        """Moments and their standard errors; the two samples of a unit share their mask."""
        units, size = draws.shape[:2]
        if not bool(draws.isfinite().all()):
            raise ValueError(
                "The plain network's output contains NaN or infinity for noisy inputs."
            )
        mean, mean_var = draws.mean((0, 1)), draws.mean(1).var(0) / units
        deviations = draws - mean
        # What the estimated mean takes away is the variance of that mean.
        total = Spread.of(deviations.square().mean(1), mean_var)
        data = model = None
        if size == 2:
            data = Spread.of((draws[:, 0] - draws[:, 1]).square() / 2)
            model = Spread.of(deviations[:, 0] * deviations[:, 1], mean_var)
        return cls(mean, mean_var.sqrt(), total, data, model, units * size)


def monte_carlo(case: Case, clock: Clock, *, samples: int | None, seed: int, show: bool) -> Truth:
    """The truth from exactly `samples` samples, or from as many as fit: at least 100."""
    seed = (seed + 1) * _STREAM
    size = case.problem(seed).group_size
    units = (TARGET if samples is None else samples) // size
    elements = sum(tensor.numel() for tensor in TensorTree(case.x).tensors)
    elements = max(elements, case.inputs * case.outputs)
    at_once = max(1, min(_AT_ONCE, _ELEMENTS // max(1, elements)) // size)
    chunks: list[Tensor] = []
    with no_gradients(), own_random_numbers(seed) if case.probe.is_random else nullcontext():
        for start in progress(range(0, units, at_once), show, "audit: Monte Carlo"):
            if samples is None and start * size >= LEAST and clock.past(_END):
                break
            # A problem draws its masks from the first one on, hence a seed for each chunk.
            problem = case.problem(seed + start)
            draws = problem.draw(range(min(at_once, units - start)))
            values = problem.run(draws.count, draws.noisy, draws.masks)
            outputs = torch.stack([case.select(problem.split(value)) for value in values])
            chunks.append(outputs.double().cpu().unflatten(0, (-1, size)))
    return Truth.of(torch.cat(chunks))
