"""The paper's search: the method itself at every rate, with common random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from howsure.fit.edges import warn_at_the_edge
from howsure.fit.objectives import (
    NO_LIKELIHOOD,
    OBJECTIVES,
    Scored,
    check_outputs,
    check_targets,
    fitted_residual_var,
)
from howsure.fit.search import Fit, Search
from howsure.methods import Method
from howsure.progress import progress
from howsure.setup import Setup

Batches = list[tuple[Any, Tensor]]


def search_grid(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the best of all rates that were tried, and the curve."""
    grid: tuple[float | None, ...] = search.grid if method.has_rate else (None,)
    searched = setup.with_(samples=search.samples, shared_masks=False, residual_var=0.0)
    if not search.with_residual_var(method):  # Known now, and not only after all rates.
        half = searched.with_(rate=0.5) if method.has_rate else searched
        first = _scored(half, method, batches[0], search)
        check_outputs(first.raised(search.floor_for(setup.task)).var)
    curve = [
        point(
            searched.with_(rate=setup.rate if rate is None else rate),
            method,
            batches,
            search,
            with_residual_var=search.with_residual_var(method),
        )
        for rate in progress(grid, search.show_progress, f"fit {method}")
    ]
    best = min(range(len(curve)), key=lambda i: curve[i].nll)
    if not math.isfinite(curve[best].nll):
        raise ValueError(NO_LIKELIHOOD)
    rate, residual_var = grid[best], curve[best].residual_var
    warn_at_the_edge(rate, search.grid)
    changed = (
        setup.with_(residual_var=residual_var)
        if rate is None
        else setup.with_(residual_var=residual_var, rate=rate)
    )
    fit = Fit(
        tuple(math.nan if r is None else r for r in grid),
        tuple(each.nll for each in curve),
        tuple(each.error for each in curve),
        rate,
        residual_var,
        search.objective_for(setup.task),
        search.samples,
        curve[best].count,
        best_nll=curve[best].nll,
    )
    return changed, fit


@dataclass(frozen=True)
class Point:
    """One point of the curve.

    Attributes:
        nll: Mean NLL per target.
        error: Its standard error over the inputs.
        residual_var: The residual variance.
        count: Inputs.
    """

    nll: float
    error: float
    residual_var: float
    count: int

    @classmethod
    def of(cls, scored: Scored, residual_var: float) -> Point:
        """The mean over all inputs, and its standard error."""
        per_input = scored.nll(residual_var).reshape(scored.count, -1).mean(1)
        error = float(per_input.std() / math.sqrt(scored.count)) if scored.count > 1 else math.inf
        nll = float(per_input.mean())
        # A variance of 0 has no likelihood, which is worse than all else.
        return cls(nll if math.isfinite(nll) else math.inf, error, residual_var, scored.count)


def point(
    setup: Setup, method: Method, batches: Batches, search: Search, *, with_residual_var: bool
) -> Point:
    """The objective of one setting, with the same random numbers as at every other."""

    def scored(index: int, batch: tuple[object, Tensor]) -> Scored:
        return _scored(setup.with_(seed=setup.seed + 1000 * index), method, batch, search)

    joined = Scored.joined(search.share.map(scored, batches)).raised(search.floor_for(setup.task))
    return Point.of(joined, fitted_residual_var(joined) if with_residual_var else 0.0)


def _scored(setup: Setup, method: Method, batch: tuple[object, Tensor], search: Search) -> Scored:
    x, target = batch
    prediction = method(setup, x)
    objective = search.objective_for(setup.task)
    check_targets(prediction, target, objective)
    return OBJECTIVES[objective](prediction, target)
