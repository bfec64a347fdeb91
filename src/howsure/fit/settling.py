"""Repeats the pass over the data at the rates that were found, until convergence.

The terms of a pass hold near its rates: masks and noise together make variance that grows faster
than either, and counts as the sensor's. A step is therefore bounded, and rates are believed only
if a pass was made near them; if they never converge, the best pass wins.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.errors import HowsureWarning
from howsure.fit.grid import Batches
from howsure.fit.objectives import check_outputs
from howsure.fit.optimum import Optimum, optimum, optimum_at
from howsure.fit.search import Search
from howsure.fit.terms import HeldOut, Terms, rate_of, terms_of
from howsure.methods import Method
from howsure.progress import progress
from howsure.setup import Setup

FIRST = 0.02  # odds of the first pass: small, and yet not lost in rounding
LEAST = 1e-5  # A site without any noise would have no slope.
REACH = 4.0  # beyond the first odds, they change at most by this factor between two passes
PASSES = 6
# Rates are settled when the model variance is within this of that at the rates of the pass ...
SETTLED = 0.2
NEGLIGIBLE = 0.01  # ... or, for small rates, within this share of the total.
FLAT = 1e-3  # A gain in NLL that is not worth a fourth pass.


def settled_terms(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Terms, Optimum]:
    """The terms of a pass near the rates that are best for them, and these rates."""
    with_residual_var = search.with_residual_var(method)
    held_out = [HeldOut.of(setup, method, x, target) for x, target in batches]
    bracket = Bracket.of(len(setup.sites(batches[0][0])))
    odds = torch.full_like(bracket.low, FIRST)
    tried: list[tuple[Terms, Optimum]] = []
    if not with_residual_var:  # Known now, and not only after a pass over all data.
        some = setup.with_(rate=float(rate_of(odds)[0]), residual_var=0.0)
        first = terms_of(some, method, held_out[0])
        check_outputs(first.total_var(first.odds))
    for number in range(PASSES):
        rates = tuple(rate_of(odds.clamp(min=LEAST)).tolist())
        at_rates = setup.with_(rate=rates, residual_var=0.0)
        bar = progress(held_out, search.show_progress, f"fit {method}, pass {number + 1}")
        parts = search.share.map(lambda _, batch, at=at_rates: terms_of(at, method, batch), bar)
        terms = Terms.joined(parts)
        best = optimum(terms, search, with_residual_var=with_residual_var)
        if number > 0 and _is_settled(terms, best):
            return terms, best
        own_odds = torch.where(terms.odds > 1.01 * LEAST, terms.odds, 0.0)
        own = optimum_at(own_odds, terms, search, with_residual_var=with_residual_var)
        if number > 1 and own.nll - best.nll <= FLAT:
            return terms, own
        tried.append((terms, own))
        if not search.per_layer:  # What one layer asks for depends on the others.
            bracket = bracket.narrowed(terms.odds, best.odds)
        odds = bracket.step(terms.odds, best.odds)
    return _best_pass(tried)


@dataclass(frozen=True, eq=False)
class Bracket:
    """Odds of every site between which the best ones lie, as far as passes tell; (sites,).

    Attributes:
        low: Where a pass asked for more.
        high: Where a pass asked for less.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, sites: int) -> Bracket:
        """Nothing is known."""
        low = torch.zeros(sites, dtype=torch.float64)
        return cls(low, torch.full_like(low, math.inf))

    def narrowed(self, odds: Tensor, best: Tensor) -> Bracket:
        """The bracket after a pass at these odds, which finds others best."""
        return Bracket(
            torch.where(best > odds, odds, self.low), torch.where(best < odds, odds, self.high)
        )

    def step(self, odds: Tensor, best: Tensor) -> Tensor:
        """Where to go: to the best odds if they are in reach, or between those that were tried."""
        highest = (REACH * odds).clamp(min=FIRST)
        lowest = torch.where(odds > 1.01 * FIRST, odds / REACH, 0.0)
        aim = best.clamp(lowest, highest)
        is_known = (self.low > 0) & (self.high < math.inf)
        is_outside = is_known & ((aim <= self.low) | (aim >= self.high))
        return torch.where(is_outside, (self.low * self.high).sqrt(), aim)


def _is_settled(terms: Terms, best: Optimum) -> bool:
    """The model variance is nearly that of the pass, or the difference does not matter."""
    by_site = terms.by_site.mean((1, 2))
    before, after = (float(terms.model_var(odds).mean()) for odds in (terms.odds, best.odds))
    # Sites that move in opposite directions do not make up for each other.
    moved = max(abs(after - before), float((by_site * (best.odds - terms.odds).abs()).sum()))
    total = float(terms.total_var(terms.odds, best.noise_scale).mean()) + best.residual_var
    # Of large odds the total is no measure: it contains what noise makes together with masks.
    are_small = float(torch.maximum(terms.odds, best.odds).max()) <= 1.01 * FIRST
    return moved <= SETTLED * before or (are_small and moved <= NEGLIGIBLE * total)


def _best_pass(tried: list[tuple[Terms, Optimum]]) -> tuple[Terms, Optimum]:
    """The pass whose own rates, which need no extrapolation, have the least NLL."""
    terms, best = min(tried, key=lambda each: each[1].nll)
    warnings.warn(
        f"The rate did not settle within {PASSES} passes; the best one that was tried is taken "
        f'(NLL {best.nll:.3g}). `search="grid"` tries them all.',
        HowsureWarning,
        stacklevel=7,
    )
    return terms, best
