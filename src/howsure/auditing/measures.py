"""How far a method's std and mean are from the truth, each number with a 95 % interval.

Intervals come from a bootstrap over inputs, with the noise of the truth drawn on top: the outputs
of one input share their draws and are resampled together. Mean absolute errors are freed of the
truth's own noise, which would count as the method's error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.auditing.truth import Spread, Truth

_REPLICATES = 200
# Ratios beyond 1e6 count as 1e6, so that a std of 0 has a finite log error.
_FURTHEST = math.log(1e6)
# Below this share of real variation in the true std there is no order to be compared.
_ORDERED = 0.5
# A part whose own std is known worse than this is left out.
_KNOWN = 0.3


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


@dataclass(frozen=True, eq=False)
class Pairs:
    """The true values that are compared, (inputs, outputs) each; NaN where an output is still."""

    log_std: Tensor
    error: Tensor

    @property
    def valid(self) -> Tensor:
        """Which pairs are compared."""
        return ~self.log_std.isnan()

    @property
    def typical_error(self) -> float:
        """Median standard error of log(std)."""
        return float(self.error[self.valid].median())

    @property
    def known(self) -> bool:
        """Whether Monte Carlo knows these stds well enough to compare with them."""
        return float(self.valid.double().mean()) > 0.5 and self.typical_error < _KNOWN

    @property
    def ordered(self) -> bool:
        """Whether the true stds differ by more than their own noise."""
        spread = float(self.log_std[self.valid].var(correction=0))
        return spread > 0 and float(self.error.square().nanmean()) < (1 - _ORDERED) * spread


def pairs_of(spread: Spread, floor: Tensor) -> Pairs:
    """The pairs whose true std is above the floor: others do not move, beyond rounding."""
    std = spread.var.clamp(min=0).sqrt()
    nothing = torch.full_like(std, math.nan)
    log_std, error = std.log(), spread.log_std_error
    return Pairs(*(torch.where(std > floor, each, nothing) for each in (log_std, error)))


def std_measures(
    std: Tensor,  # (inputs, outputs)
    pairs: Pairs,
    seed: int,
) -> Measures:
    """Ratio, log error and rank of a method's std."""
    log_ratio = (std.log() - pairs.log_std).clamp(-_FURTHEST, _FURTHEST)
    copies = Replicates(pairs.valid, seed)
    error = copies.of(pairs.error)
    moved = copies.of(log_ratio) - copies.noise * error
    ratio = moved.nanquantile(0.5, dim=1).exp()
    log_error = mean_size(moved, copies.times * error.square().nanmean(1))
    rank = None
    if pairs.ordered and float(std[pairs.valid].std()) > 0:
        truth = copies.of(pairs.log_std) + copies.noise * error
        rank = _estimate(spearman(copies.of(std), truth))
    return Measures(_estimate(ratio), _estimate(log_error), rank)


def mean_shift(
    mean: Tensor,  # (inputs, outputs)
    truth: Truth,
    pairs: Pairs,
    seed: int,
) -> Estimate:
    """Mean of |mean - true mean| / true std."""
    true_std = pairs.log_std.exp()
    copies = Replicates(pairs.valid, seed)
    error = copies.of(truth.mean_error / true_std)
    moved = copies.of((mean - truth.mean) / true_std) + copies.noise * error
    return _estimate(mean_size(moved, copies.times * error.square().nanmean(1)))


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
        self.times = torch.ones(len(self.rows), dtype=torch.float64) * 2
        self.times[0] = 1

    def of(self, values: Tensor) -> Tensor:  # (copies, pairs)
        """The values (inputs, outputs) in every copy."""
        return values[self.rows].flatten(1)


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
    observed, centre = values.abs().nanmean(1), values.nanmean(1)
    var = (values - centre[:, None]).square().nanmean(1)
    with_noise = _folded(centre, var)
    without = _folded(centre, (var - noise_var).clamp(min=0))
    return torch.where(with_noise > 0, observed * without / with_noise, observed)


def _folded(centre: Tensor, var: Tensor) -> Tensor:
    std = var.sqrt().clamp(min=torch.finfo(var.dtype).tiny)  # 0 / 0 of an exact method
    reach = centre / std
    bell = std * math.sqrt(2 / math.pi) * (-reach.square() / 2).exp()
    return bell + centre * torch.erf(reach / math.sqrt(2))


def spearman(
    first: Tensor,  # (copies, pairs), NaN for none
    second: Tensor,  # (copies, pairs), NaN at the same places
) -> Tensor:  # (copies,)
    """Pearson's correlation of the ranks; equal values share their rank. 0 without any order."""
    missing = second.isnan()
    one, two = (_ranks(each.masked_fill(missing, math.inf)) for each in (first, second))
    one, two = (_less_mean(each.masked_fill(missing, 0), missing) for each in (one, two))
    size = (one.square().sum(1) * two.square().sum(1)).sqrt()
    return (one * two).sum(1) / torch.where(size > 0, size, torch.ones_like(size))


def _ranks(values: Tensor) -> Tensor:
    """Twice the average ranks, up to a constant."""
    ordered = values.sort(dim=1).values
    sides = (torch.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return sum(sides, torch.zeros_like(values))


def _less_mean(ranks: Tensor, missing: Tensor) -> Tensor:
    counts = (~missing).sum(1, keepdim=True)
    return (ranks - ranks.sum(1, keepdim=True) / counts).masked_fill(missing, 0)
