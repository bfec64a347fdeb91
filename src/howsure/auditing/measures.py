"""How far a method's std and mean are from the truth, each number with a 95 % interval.

Intervals come from a bootstrap over inputs, with the noise of the truth drawn on top: the outputs
of one input share their draws and are resampled together. Mean absolute errors are freed of the
truth's own noise, which would count as the method's error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure.metrics.ranks import rank_correlation

if TYPE_CHECKING:
    from howsure.auditing.case import Spread, Truth


_REPLICATES = 200
# Ratios beyond 1e6 count as 1e6, so that a std of 0 has a finite log error.
_FURTHEST = math.log(1e6)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The number, then its interval."""
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Measures:
    """A std against the true one, over all pairs of input and output.

    Attributes:
        ratio: Median of std / true std.
        log_error: Mean of |log(std / true std)|; 0.1 is about 10 %.
        rank: Spearman's correlation with the true std; `None` where all true stds are the same
            as far as Monte Carlo can tell.
    """

    ratio: Estimate
    log_error: Estimate
    rank: Estimate | None


def std_measures(
    std: Tensor,  # (inputs, outputs)
    truth: Spread,
    seed: int,
) -> Measures:
    """Ratio, log error and rank of a method's std."""
    log_ratio = (std.log() - truth.log_std).clamp(-_FURTHEST, _FURTHEST)
    copies = Replicates(truth.valid, seed)
    error = copies.of(truth.error)
    moved = copies.of(log_ratio) - copies.noise * error
    ratio = _estimate(moved.nanquantile(0.5, dim=1).exp())
    rank = None
    if truth.has_order and float(std[truth.valid].std()) > 0:
        true = copies.of(truth.log_std) + copies.noise * error
        rank = _estimate(spearman(copies.of(std), true))
    return Measures(ratio, copies.mean_size(moved, error), rank)


def mean_shift(
    mean: Tensor,  # (inputs, outputs)
    truth: Truth,
    seed: int,
) -> Estimate:
    """Mean of |mean - true mean| / true std."""
    copies, true_std = Replicates(truth.total.valid, seed), truth.total.log_std.exp()
    error = copies.of(truth.mean_error / true_std)
    moved = copies.of((mean - truth.mean) / true_std) + copies.noise * error
    return copies.mean_size(moved, error)


class Replicates:
    """The data itself, then copies with inputs drawn anew and the truth's noise on top."""

    def __init__(self, valid: Tensor, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        inputs = valid.any(1).nonzero().flatten()
        drawn = torch.randint(len(inputs), (_REPLICATES, len(inputs)), generator=generator)
        self.rows = torch.cat([inputs[None], inputs[drawn]])
        shape = (_REPLICATES, len(inputs) * valid.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.noise = torch.cat([torch.zeros_like(noise[:1]), noise])
        # How often the truth's noise is in the data: the copies have it twice.
        self.times = torch.full((len(self.rows),), 2.0, dtype=torch.float64)
        self.times[0] = 1

    def of(self, values: Tensor) -> Tensor:  # (copies, pairs)
        """The values (inputs, outputs) in every copy."""
        return values[self.rows].flatten(1)

    def mean_size(self, values: Tensor, error: Tensor) -> Estimate:  # (copies, pairs) each
        """Mean absolute value, freed of the truth's noise of this standard error."""
        return _estimate(mean_size(values, self.times * error.square().nanmean(1)))


def _estimate(values: Tensor) -> Estimate:
    """The first value, with the middle 95 % of the others."""
    value = float(values[0])
    low, high = (float(values[1:].quantile(q)) for q in (0.025, 0.975))
    return Estimate(value, min(low, value), max(high, value))


def mean_size(
    values: Tensor,  # (copies, pairs), NaN for none
    noise_var: Tensor,  # (copies,)
) -> Tensor:  # (copies,)
    """Mean absolute value, freed of noise of a known variance that is in the values.

    As if the values were normal: |N(m, s**2)| has the mean s sqrt(2/pi) exp(-m**2 / 2 s**2) +
    m erf(m / s sqrt 2), and the observed mean is scaled by what this loses from s**2 to
    s**2 - noise_var.
    """
    observed, center = values.abs().nanmean(1), values.nanmean(1)
    var = (values - center[:, None]).square().nanmean(1)

    def folded_mean(var: Tensor) -> Tensor:
        std = var.sqrt().clamp(min=torch.finfo(var.dtype).tiny)  # 0 / 0 of an exact method
        z = center / std
        bell = std * math.sqrt(2 / math.pi) * (-z.square() / 2).exp()
        return bell + center * torch.erf(z / math.sqrt(2))

    with_noise, without = folded_mean(var), folded_mean((var - noise_var).clamp(min=0))
    return torch.where(with_noise > 0, observed * without / with_noise, observed)


def spearman(
    first: Tensor,  # (copies, pairs), NaN for none
    second: Tensor,  # (copies, pairs), NaN at the same positions
) -> Tensor:  # (copies,)
    """The rank correlation of every copy; 0 without any order."""
    correlations = []
    for one, two in zip(first, second, strict=True):
        pair = one[~two.isnan()], two[~two.isnan()]
        has_order = all(bool((values != values[0]).any()) for values in pair)
        correlations.append(rank_correlation(*pair) if has_order else one.new_zeros(()))
    return torch.stack(correlations)
