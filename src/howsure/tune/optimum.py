"""The rates, tau and the factor on the noise that are best for given terms of the variance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.objectives import Scored, fitted_tau
from howsure.tune.search import Search
from howsure.tune.terms import Terms, odds_of

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


def optimum(terms: Terms, search: Search, *, with_tau: bool) -> Optimum:
    """The settings of least NLL: the best single rate first, then all free settings together."""
    largest = float(odds_of(torch.tensor(max(search.grid), dtype=torch.float64)))
    smallest = min((rate for rate in search.grid if rate > 0), default=largest)
    line = torch.logspace(math.log10(smallest), math.log10(largest), LINE, dtype=torch.float64)
    points = (0.0, *line.tolist())
    tried = [_single(terms, odds, with_tau=with_tau) for odds in points]
    if search.fit_noise:
        tried += [_single(terms, odds, with_tau=with_tau, match_noise=True) for odds in points]
    best = min(tried, key=lambda each: each.nll)
    if not math.isfinite(best.nll):
        raise ValueError(
            "The total variance is 0 at every rate, so no likelihood is defined; give the "
            "sensor's noise or set `fit_tau=True`."
        )
    if float(best.odds.max()) == 0 and not search.fit_noise:
        return best
    return min(best, _descended(terms, best, search, largest), key=lambda each: each.nll)


def _single(terms: Terms, odds: float, *, with_tau: bool, match_noise: bool = False) -> Optimum:
    """One rate for all sites, with the tau that suits it, and noise that explains the errors."""
    everywhere = torch.full_like(terms.odds, odds)
    scale = _matched_scale(terms, everywhere) if match_noise else 1.0
    scored = Scored(terms.error, terms.total_var(everywhere, scale))
    tau = fitted_tau(scored) if with_tau else 0.0
    nll = float(scored.nll(tau).mean())
    return Optimum(everywhere, tau, scale, nll if math.isfinite(nll) else math.inf)


def _matched_scale(terms: Terms, odds: Tensor) -> float:
    """The factor on the sensor's variance with which the mean squared error is as predicted."""
    unexplained = float((terms.error - terms.model_var(odds)).mean())
    data = float(terms.data.mean())
    return unexplained / data if unexplained > 0 and data > 0 else 1.0


def _descended(terms: Terms, start: Optimum, search: Search, largest: float) -> Optimum:
    """A local minimum in all free settings, by L-BFGS on their logarithms.

    Odds are `largest` times a sigmoid, so that they stay in the range of the search.
    """
    sites = len(terms.odds) if search.per_layer else 1
    share = (start.odds[:sites] / largest).clamp(1e-9, 1 - 1e-3)
    scale = torch.tensor([start.noise_scale]).log()
    free = [torch.logit(share), *_logarithm(start.tau), *([scale] * search.fit_noise)]
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
