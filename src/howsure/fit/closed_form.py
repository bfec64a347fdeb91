"""The search in closed form: rates, residual variance and noise scale by a smooth optimiser.

One pass over the data gives all terms of the variance (`howsure.fit.terms`). The slopes of a
network depend on the noise inside it, so the pass is repeated at the rates that were found, until
they stay (`howsure.fit.settling`); and one sampled run confirms the result.
"""

from __future__ import annotations

import torch

from howsure.fit.edges import warn_at_the_edge
from howsure.fit.grid import Batches, Point, point
from howsure.fit.objectives import Scored, fitted_residual_var
from howsure.fit.search import Fit, Search
from howsure.fit.settling import settled_terms
from howsure.fit.terms import Terms, odds_of, rate_of
from howsure.methods import Method, sampling_for
from howsure.noise import scaled
from howsure.setup import Setup


def search_closed_form(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the best rates, residual variance and noise, and the curve over the rates."""
    with_residual_var = search.with_residual_var(method)
    terms, best = settled_terms(setup, method, batches, search)
    rates = tuple(rate_of(best.odds).tolist())
    found = rates if search.per_layer else rates[0]
    warn_at_the_edge(_rate_at_an_edge(rates, search), search.grid)
    noise = setup.noise if best.noise_scale == 1 else scaled(setup.noise, best.noise_scale)
    changed = setup.with_(rate=found, residual_var=best.residual_var, noise=noise)
    curve = [
        _on_curve(terms, rate, best.noise_scale, with_residual_var=with_residual_var)
        for rate in search.grid
    ]
    fit = Fit(
        search.grid,
        tuple(each.nll for each in curve),
        tuple(each.error for each in curve),
        found,
        best.residual_var,
        search.objective_for(setup.task),
        search.samples,
        len(terms.error),
        best.noise_scale,
        best.nll,
        _confirmed(changed, method, batches, search),
        tuple(site.name for site in setup.sites(batches[0][0])),
    )
    return changed, fit


def _rate_at_an_edge(rates: tuple[float, ...], search: Search) -> float | None:
    """The rate to look at; a layer may well have none, so that of many only the largest."""
    if not search.per_layer:
        return rates[0]
    return max(rates) if max(rates) >= max(search.grid) else None


def _on_curve(terms: Terms, rate: float, noise_scale: float, *, with_residual_var: bool) -> Point:
    """The NLL of one rate for all sites, extrapolated from the last pass."""
    odds = odds_of(torch.full_like(terms.odds, rate))
    scored = Scored(terms.error, terms.total_var(odds, noise_scale))
    return Point.of(scored, fitted_residual_var(scored) if with_residual_var else 0.0)


def _confirmed(setup: Setup, method: Method, batches: Batches, search: Search) -> float | None:
    """The NLL of the result by sampling."""
    if not search.samples:
        return None
    if method.has_budget:
        method = sampling_for(setup)
    sampled = setup.with_(samples=search.samples, shared_masks=False)
    return point(sampled, method, batches, search, with_residual_var=False).nll
