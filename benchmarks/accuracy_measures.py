"""Measures of a standard deviation against brute force, without brute force's own error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# E|x| / sqrt(E x^2) of a normal number.
_MEAN_ABSOLUTE = math.sqrt(2 / math.pi)
# A top probability that hardly moves has a std that nobody asks for.
_LEAST_STD = 0.001


@dataclass(frozen=True, eq=False)
class Truth:
    """Mean and std of all pairs of input and output that count, flat.

    Attributes:
        mean: Of brute force.
        std: Of brute force.
        samples: How many made it.
        chosen: The pairs that count, of (inputs, outputs); `None` is all.
    """

    mean: Tensor
    std: Tensor
    samples: int
    chosen: Tensor | None = None

    @classmethod
    def of(cls, draws: Tensor, plain: Tensor, probability: bool = False) -> Truth:
        """From draws (samples, inputs, outputs), or those of the probability of the top class."""
        if not probability:
            return cls(draws.mean(0).flatten(), draws.std(0).flatten(), len(draws))
        draws = draws.softmax(2)
        std = draws.std(0)
        top = torch.nn.functional.one_hot(plain.argmax(1), plain.shape[1]).bool()
        chosen = top & (std > _LEAST_STD)
        return cls(draws.mean(0)[chosen], std[chosen], len(draws), chosen)

    @property
    def own_error(self) -> float:
        """The relative standard error of its std, if outputs are Gaussian."""
        return 1 / math.sqrt(2 * (self.samples - 1))

    def pick(self, values: Tensor) -> Tensor:
        """The pairs that count."""
        return values.flatten() if self.chosen is None else values[self.chosen]

    def mean_error(self, mean: Tensor) -> float:
        """Mean absolute error of the mean, in true std."""
        mean = mean if self.chosen is None else mean.softmax(1)
        return self._mean_error(self.pick(mean))

    def _mean_error(self, mean: Tensor) -> float:
        return float(((mean - self.mean) / self.std).abs().mean())


def measures(truth: Truth, mean: Tensor, std: Tensor, error: Tensor | None) -> dict[str, float]:
    """Ratio, log error, rank correlation, error of the mean; stated and actual relative error."""
    found = truth.pick(std.detach())
    ratio = found / truth.std
    log_error = float(ratio.log().abs().mean())
    actual = float((ratio - 1).square().mean().sqrt())
    result = {
        "ratio": float(ratio.median()),
        "log_error": _without(log_error, _MEAN_ABSOLUTE * truth.own_error),
        "rank": rank_correlation(found, truth.std),
        "mean_error": truth._mean_error(truth.pick(mean.detach())),
        "actual_error": _without(actual, truth.own_error),
    }
    if error is not None:
        stated = truth.pick(error.detach()) / found
        result["stated_error"] = float(stated.square().mean().sqrt())
    return result


def _without(error: float, own: float) -> float:
    """An error less that of the truth, which is independent of it."""
    return math.sqrt(max(0.0, error**2 - own**2))


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Spearman's."""
    ranks = torch.stack([each.argsort().argsort().double() for each in (one, two)])
    return float(torch.corrcoef(ranks)[0, 1])


def average(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of several seeds: the mean, and the root mean square of what is one already."""
    found = {}
    for key in runs[0]:
        values = torch.tensor([run[key] for run in runs])
        is_square = key in ("actual_error", "stated_error")
        found[key] = float(values.square().mean().sqrt() if is_square else values.mean())
    return found
