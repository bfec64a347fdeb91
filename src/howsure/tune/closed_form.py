"""The search without passes: the rates, tau and a noise scale by a smooth optimiser on the NLL.

One pass over the data gives all terms of the variance (`howsure.tune.terms`). The slopes of a
network depend a little on the noise inside it, so the pass is repeated at the rates that were
found, until they stay; and one sampled run confirms the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.methods.setup import Setup
from howsure.noise import scaled
from howsure.objectives import Scored, fitted_tau
from howsure.progress import progress
from howsure.tune.edges import warn_at_the_edge
from howsure.tune.grid import Batches, Point, point
from howsure.tune.search import Fit, Search
from howsure.tune.terms import HeldOut, Terms, odds_of, rate_of, terms_of

FIRST_RATE = 0.02  # where the first pass is made: small, and yet not lost in rounding
LEAST_RATE = 1e-5  # a site without any noise would have no slope
# Probes in each pass: the first finds the order of magnitude, a second or third the rate itself.
PROBES = (0, 4, 4)
# Rates are settled when the model variance changes by less than this between two passes.
SETTLED = 0.2
LINE = 100  # single rates that are tried before the descent
NOTHING = 1e-6  # odds below are 0


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best settings for given terms.

    Attributes:
        odds: The odds of every dropout site, (sites,).
        tau: The residual variance.
        noise_scale: The factor on the sensor's variance.
        nll: The mean NLL.
    """

    odds: Tensor
    tau: float
    noise_scale: float
    nll: float


def search_closed_form(
    setup: Setup, name: str, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the best rates, tau and noise, and the curve over the rates."""
    with_tau = search.with_tau(name)
    terms, best = _settled_terms(setup, name, batches, search)
    rates = tuple(rate_of(best.odds).tolist())
    found = rates if search.per_layer else rates[0]
    _warn(rates, search)
    noise = setup.noise if best.noise_scale == 1 else scaled(setup.noise, best.noise_scale)
    changed = setup.with_(rate=found, tau=best.tau, noise=noise)
    curve = [_on_curve(terms, rate, with_tau=with_tau) for rate in search.grid]
    fit = Fit(
        search.grid,
        tuple(each.nll for each in curve),
        tuple(each.error for each in curve),
        found,
        best.tau,
        search.objective_for(setup.task),
        search.samples,
        len(terms.error),
        best.noise_scale,
        best.nll,
        _confirmed(changed, name, batches, search),
        tuple(site.name for site in setup.sites(batches[0][0])),
    )
    return changed, fit


def _settled_terms(
    setup: Setup, name: str, batches: Batches, search: Search
) -> tuple[Terms, Optimum]:
    """The terms at the rates that are best for them."""
    held_out = [HeldOut.of(setup, name, x, target) for x, target in batches]
    rates: tuple[float, ...] = (FIRST_RATE,) * len(setup.sites(batches[0][0]))
    for number, probes in enumerate(PROBES):
        at_rates = setup.with_(rate=rates, tau=0.0, probes=min(probes, setup.probes))
        bar = progress(held_out, search.show_progress, f"fit {name}, pass {number + 1}")
        parts = search.share.map(lambda _, batch, at=at_rates: terms_of(at, name, batch), bar)
        terms = Terms.joined(parts)
        best = optimum(terms, search, with_tau=search.with_tau(name))
        rates = tuple(rate_of(best.odds).clamp(min=LEAST_RATE).tolist())
        if number == len(PROBES) - 1 or (number > 0 and _are_settled(terms, best)):
            return terms, best
    raise AssertionError("the loop returns")


def _are_settled(terms: Terms, best: Optimum) -> bool:
    before, after = (float(terms.model_var(odds).mean()) for odds in (terms.odds, best.odds))
    return after == 0 or abs(after - before) <= SETTLED * before


def _warn(rates: tuple[float, ...], search: Search) -> None:
    if not search.per_layer:
        warn_at_the_edge(rates[0], search.grid)
    elif max(rates) >= max(search.grid):
        warn_at_the_edge(max(rates), search.grid)


def optimum(terms: Terms, search: Search, *, with_tau: bool) -> Optimum:
    """The settings of least NLL: the best single rate first, then all free settings together."""
    largest = float(odds_of(torch.tensor(max(search.grid), dtype=torch.float64)))
    smallest = min((rate for rate in search.grid if rate > 0), default=largest)
    line = torch.logspace(math.log10(smallest), math.log10(largest), LINE, dtype=torch.float64)
    tried = [_single(terms, odds, with_tau=with_tau) for odds in (0.0, *line.tolist())]
    best = min(tried, key=lambda each: each.nll)
    if not math.isfinite(best.nll):
        raise ValueError(
            "The total variance is 0 at every rate, so no likelihood is defined; give the "
            "sensor's noise or set `fit_tau=True`."
        )
    if float(best.odds.max()) == 0:
        return best
    return min(best, _descended(terms, best, search, largest), key=lambda each: each.nll)


def _single(terms: Terms, odds: float, *, with_tau: bool) -> Optimum:
    """One rate for all sites, with the tau that suits it."""
    everywhere = torch.full_like(terms.odds, odds)
    scored = Scored(terms.error, terms.total_var(everywhere))
    tau = fitted_tau(scored) if with_tau else 0.0
    nll = float(scored.nll(tau).mean())
    return Optimum(everywhere, tau, 1.0, nll if math.isfinite(nll) else math.inf)


def _descended(terms: Terms, start: Optimum, search: Search, largest: float) -> Optimum:
    """A local minimum in all free settings, by L-BFGS on their logarithms.

    Odds are `largest` times a sigmoid, so that they stay in the range of the search.
    """
    sites = len(terms.odds) if search.per_layer else 1
    share = (start.odds[:sites] / largest).clamp(1e-9, 1 - 1e-3)
    free = [torch.logit(share), *_logarithm(start.tau), *([torch.zeros(1)] * search.fit_noise)]
    point = torch.cat([part.double() for part in free]).requires_grad_()

    def settings() -> tuple[Tensor, Tensor, Tensor]:
        rest = [part.exp() for part in point[sites:]]
        tau = rest.pop(0) if start.tau > 0 else torch.zeros((), dtype=torch.float64)
        scale = rest.pop(0) if search.fit_noise else torch.ones((), dtype=torch.float64)
        return (largest * torch.sigmoid(point[:sites])).expand_as(terms.odds), tau, scale

    def nll() -> Tensor:
        odds, tau, scale = settings()
        return Scored(terms.error, terms.total_var(odds, scale) + tau).nll().mean()

    _minimise(nll, point)
    with torch.no_grad():
        odds, tau, scale = settings()
        odds = torch.where(odds < NOTHING, torch.zeros_like(odds), odds)
        return Optimum(odds.clone(), float(tau), float(scale), float(nll()))


def _logarithm(tau: float) -> list[Tensor]:
    return [torch.tensor([tau]).log()] if tau > 0 else []


def _minimise(objective: Callable[[], Tensor], point: Tensor) -> None:
    optimiser = torch.optim.LBFGS([point], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective()
        value.backward()
        return value

    optimiser.step(closure)


def _on_curve(terms: Terms, rate: float, *, with_tau: bool) -> Point:
    """The NLL of one rate for all sites."""
    odds = odds_of(torch.full_like(terms.odds, rate))
    scored = Scored(terms.error, terms.total_var(odds))
    return Point.of(scored, fitted_tau(scored) if with_tau else 0.0)


def _confirmed(setup: Setup, name: str, batches: Batches, search: Search) -> float | None:
    """The NLL of the result by sampling."""
    if not search.samples:
        return None
    if name == "adjoint":
        name = "mc_dropout" if setup.noise is None else "noise_sampling"
    sampled = setup.with_(samples=search.samples, shared_masks=False)
    return point(sampled, name, batches, search, with_tau=False).nll
