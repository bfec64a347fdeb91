"""Rates, residual variance and factor on the noise that are best for terms of the variance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.fit.objectives import NO_LIKELIHOOD, Scored, fitted_residual_var
from howsure.fit.search import Search
from howsure.fit.terms import Terms, odds_of

LINE = 100  # single rates that are tried before the descent
NOTHING = 1e-6  # odds below are 0


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best settings for given terms.

    Attributes:
        odds: The odds of every dropout site, (sites,).
        residual_var: The residual variance.
        noise_scale: The factor on the sensor's variance.
        nll: The mean NLL.
    """

    odds: Tensor
    residual_var: float
    noise_scale: float
    nll: float


def optimum(terms: Terms, search: Search, *, with_residual_var: bool) -> Optimum:
    """The settings of least NLL: the best single rate first, then all free settings together."""
    tried = odds_of(torch.tensor([rate for rate in search.grid if rate > 0], dtype=torch.float64))
    largest = float(tried.max()) if len(tried) else 0.0
    line = torch.logspace(*tried.log10().aminmax(), LINE).tolist() if len(tried) else []
    points = [torch.full_like(terms.odds, odds) for odds in (0.0, *line)]
    best = min(
        (_at(terms, odds, search, with_residual_var) for odds in points), key=lambda each: each.nll
    )
    if not math.isfinite(best.nll):
        raise ValueError(NO_LIKELIHOOD)
    if float(best.odds.max()) == 0 and not search.fit_noise:
        return best
    if largest == 0:
        return optimum_at(best.odds, terms, search, with_residual_var=with_residual_var)
    sites = len(terms.odds) if search.per_layer else 1
    return min(best, _descended(terms, best, search, sites, largest), key=lambda each: each.nll)


def optimum_at(odds: Tensor, terms: Terms, search: Search, *, with_residual_var: bool) -> Optimum:
    """The residual variance and the factor on the noise that are best for given odds."""
    best = _at(terms, odds, search, with_residual_var)
    if not search.fit_noise or not math.isfinite(best.nll):
        return best
    return min(best, _descended(terms, best, search, sites=0), key=lambda each: each.nll)


def _at(terms: Terms, odds: Tensor, search: Search, with_residual_var: bool) -> Optimum:
    """Given odds with the residual variance that suits; noise as stated, or as errors ask."""
    scales = [1.0, _matched_scale(terms, odds)] if search.fit_noise else [1.0]
    found = []
    for scale in scales:
        scored = Scored(terms.error, terms.total_var(odds, scale))
        residual_var = fitted_residual_var(scored) if with_residual_var else 0.0
        nll = float(scored.nll(residual_var).mean())
        found.append(Optimum(odds, residual_var, scale, nll if math.isfinite(nll) else math.inf))
    return min(found, key=lambda each: each.nll)


def _matched_scale(terms: Terms, odds: Tensor) -> float:
    """The factor on the sensor's variance with which the mean squared error is as predicted."""
    unexplained = float((terms.error - terms.model_var(odds)).mean())
    data = float(terms.data.mean())
    return unexplained / data if unexplained > 0 and data > 0 else 1.0


def _descended(
    terms: Terms, start: Optimum, search: Search, sites: int, largest: float = 1.0
) -> Optimum:
    """A local minimum in all free settings, by L-BFGS on their logarithms.

    As many odds are free as there are `sites`: one for each, a single one for all, or none. They
    are `largest` times a sigmoid, so that they stay in the range of the search.
    """
    share = (start.odds[:sites] / largest).clamp(1e-9, 1 - 1e-3)
    scale = torch.tensor([start.noise_scale]).log()
    free = [torch.logit(share), *_logarithm(start.residual_var), *([scale] * search.fit_noise)]
    point = torch.cat([part.double() for part in free]).requires_grad_()

    def settings() -> tuple[Tensor, Tensor, Tensor]:
        rest = [part.exp() for part in point[sites:]]
        residual_var = (
            rest.pop(0) if start.residual_var > 0 else torch.zeros((), dtype=torch.float64)
        )
        scale = rest.pop(0) if search.fit_noise else torch.ones((), dtype=torch.float64)
        if not sites:
            return start.odds, residual_var, scale
        return (largest * torch.sigmoid(point[:sites])).expand_as(terms.odds), residual_var, scale

    def nll() -> Tensor:
        odds, residual_var, scale = settings()
        return Scored(terms.error, terms.total_var(odds, scale) + residual_var).nll().mean()

    _minimise(nll, point)
    with torch.no_grad():
        odds, residual_var, scale = settings()
        odds = torch.where(odds < NOTHING, torch.zeros_like(odds), odds)
        return Optimum(odds.clone(), float(residual_var), float(scale), float(nll()))


def _logarithm(residual_var: float) -> list[Tensor]:
    return [torch.tensor([residual_var]).log()] if residual_var > 0 else []


def _minimise(objective: Callable[[], Tensor], point: Tensor) -> None:
    optimiser = torch.optim.LBFGS([point], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective()
        value.backward()
        return value

    optimiser.step(closure)
