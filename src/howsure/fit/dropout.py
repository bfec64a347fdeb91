"""The paper's dropout: the rate that is best for held-out data, found after training.

Over rates p, a residual variance if wanted, and in closed form also a factor on the noise, it
minimizes the mean of 1/2 log s + (y - yhat)^2 / (2 s), s the total *variance* (Loquercio et al.
2020, Eq. 12), on held-out data that carries the noise of deployment.

`search_grid` runs the method itself at every rate, as the paper does. `search_closed_form` takes
the variance by source from backward passes: sum_l c_l M_l(x) over the dropout sites l with the
odds c = p / (1 - p), and D(x), the sensor's. M and D depend on the odds beyond first order alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.arrays import number_range
from howsure.errors import HowsureWarning
from howsure.fit.folds import Batches
from howsure.fit.objectives import (
    NO_LIKELIHOOD,
    OBJECTIVES,
    Scored,
    check_outputs,
    check_targets,
    fitted_residual_var,
    gaussian,
)
from howsure.fit.options import WHOLE, FitOptions, Share, points_for
from howsure.gaussian_output import Gaussian
from howsure.methods import METHODS, Method, choose, gradients, sampling_for
from howsure.methods.choice import outputs_of
from howsure.methods.gradients import why_no_gradients
from howsure.methods.propagation import ADF, Pass
from howsure.noise import scaled
from howsure.prediction import Prediction
from howsure.probe import probe_model
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup

# The paper searches "a log-range of 20 possible rates in [0, 1]", which cannot include its ends.
DEFAULT_RATES = (0.0, *torch.logspace(-3, math.log10(0.9), 20, dtype=torch.float64).tolist())
# The constant variance (called tau) of the paper's released code.
ONE_HOT_FLOOR = 1e-4
# Odds of the first pass in closed form: small, and yet not lost in rounding.
_FIRST = 0.02
_LEAST = 1e-5  # A site without any noise would have no slope.
_REACH = 4.0  # Beyond the first odds, they change at most by this factor between two passes.
_PASSES = 6
# Rates have converged when the model variance is within this of that at the rates of the pass ...
_SETTLED = 0.2
_NEGLIGIBLE = 0.01  # ... or, for small rates, within this share of the total.
_FLAT = 1e-3  # A gain in NLL that is not worth a fourth pass.
_LINE = 100  # Single rates that are tried before the descent.
_NOTHING = 1e-6  # Odds below count as 0.


@dataclass(frozen=True, kw_only=True)
class Search(FitOptions):
    """The options of `Uncertain.fit(model="dropout")`, besides those of every fit.

    Attributes:
        search: "grid" runs the method at every rate, as the paper does. "closed_form" takes the
            variances by source from backward passes, two to six in all.
            "auto" is "closed_form" for regression with the method "gradients", else "grid".
        rates: Rates to try; by default 0 and 20 log-spaced ones from 0.001 to 0.9. In closed form
            their largest bounds the rate.
        samples: Monte-Carlo samples during the search; more than in use, for a smooth curve. In
            closed form they confirm the result; 0 leaves that out.
        per_layer: One rate for every dropout site (closed form only).
        fit_residual_var: Also fit a constant residual variance, for noisy targets. Default: only
            for the methods that have no other data variance.
        fit_noise: Also fit a factor on the sensor's variance (closed form only).
        objective: "gaussian", or for classification "one_hot" (as the paper's authors) or
            "categorical".
        floor: Smallest variance in the likelihood (grid only). Default: 0, and for "one_hot" 1e-4
            as in the authors' code: probabilities near 0 and 1 vary by next to nothing, and their
            logarithms would outweigh all errors.
        share: Which batches this process works on; `howsure.data.distributed.fit` sets it.
    """

    search: str = "auto"
    rates: Sequence[float] | None = None
    samples: int = 50
    per_layer: bool = False
    fit_residual_var: bool | None = None
    fit_noise: bool = False
    objective: str = "auto"
    floor: float | None = None
    share: Share = WHOLE

    def __post_init__(self) -> None:
        """One clear sentence for each wrong option."""
        super().__post_init__()
        self._check_choice("search", ("auto", "grid", "closed_form"))
        if self.objective != "auto" and self.objective not in OBJECTIVES:
            raise ValueError(
                f"`objective` must be one of {sorted(OBJECTIVES)}, not {self.objective!r}."
            )
        if self.floor is not None and not self.floor >= 0:
            raise ValueError(f"`floor` must be a variance of 0 or more, not {self.floor}.")
        if not self.grid or not all(0 <= rate < 1 for rate in self.grid):
            raise ValueError("The rates to try must be numbers from 0 up to, but not including, 1.")

    @property
    def grid(self) -> tuple[float, ...]:
        """The rates to try."""
        return tuple(DEFAULT_RATES if self.rates is None else self.rates)

    def resolve(self, task: str, method: Method) -> Search:
        """The same options with the defaults of a task and a method filled in."""
        objective, floor, has_residual = self.objective, self.floor, self.fit_residual_var
        if objective == "auto":
            objective = "gaussian" if task == "regression" else "one_hot"
        if floor is None:
            floor = ONE_HOT_FLOOR if objective == "one_hot" else 0.0
        if has_residual is None:
            has_residual = not method.has_data_var
        return replace(self, objective=objective, floor=floor, fit_residual_var=has_residual)


@dataclass(frozen=True, repr=False)
class Fit:
    """The result of a search.

    Attributes:
        rates: The rates of the curve; those that were tried, unless in closed form.
        nll: Mean negative log-likelihood per target at each rate, without 1/2 log 2 pi. In closed
            form it is extrapolated from the last pass, and holds near the result.
        standard_error: Its standard error over the data.
        rate: The best rate, or the best of every dropout site; `None` if the method has none.
        residual_var: The residual variance at the best rate.
        objective: Which likelihood was used.
        samples: Monte-Carlo samples per rate.
        count: Held-out inputs.
        noise_scale: The factor that was found for the sensor's variance.
        best_nll: The NLL at the result; in closed form it may lie between two rates.
        confirmed_nll: The NLL at the result by sampling, where the search itself did not sample.
        sites: The names of the dropout sites, where there is a rate for each.
        notes: What a user should know about the way in which it was found.
    """

    rates: tuple[float, ...]
    nll: tuple[float, ...]
    standard_error: tuple[float, ...]
    rate: float | tuple[float, ...] | None
    residual_var: float
    objective: str
    samples: int
    count: int
    noise_scale: float = 1.0
    best_nll: float = math.nan
    confirmed_nll: float | None = None
    sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What was found, in one line."""
        rates = self.rate if isinstance(self.rate, tuple) else (self.rate,)
        rate = "none" if self.rate is None else number_range([torch.tensor(rates)])
        return (
            f"Fit(rate {rate}, residual_var {self.residual_var:.3g}, NLL {self.best_nll:.3g}, "
            f"{self.count} inputs)"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """A table of the curve, and what was found."""
        lines = [
            *self.notes,
            f"objective {self.objective}, {self.count} inputs, T = {self.samples}",
        ]
        for rate, nll, error in zip(self.rates, self.nll, self.standard_error, strict=True):
            mark = "  <- best" if rate == self.rate else ""
            lines.append(f"rate {rate:8.4g}   NLL {nll:10.4f} +- {error:.4f}{mark}")
        if isinstance(self.rate, tuple):
            lines += [f"{r:8.4g}   {site}" for r, site in zip(self.rate, self.sites, strict=True)]
        elif self.rate is not None and self.rate not in self.rates:
            lines.append(f"rate {self.rate:8.4g}   NLL {self.best_nll:10.4f}  <- best")
        if self.confirmed_nll is not None:
            lines.append(f"NLL {self.best_nll:.4f}, by sampling {self.confirmed_nll:.4f}")
            gap = abs(self.confirmed_nll - self.best_nll)
            # A variance of T samples has chance errors, which cost 1 / (T - 1) on average.
            expected = 2 * min(self.standard_error) + 1 / max(1, self.samples - 1)
            if gap > expected:
                lines.append(
                    f"They differ by {gap:.2g}, more than chance ({expected:.2g}): the first is "
                    "first order in the masks, the second has all of it. Which is right for your "
                    'method shows `search="grid"`, which tries every rate by sampling.'
                )
        if self.noise_scale != 1.0:
            lines.append(f"noise variance times {self.noise_scale:.4g}")
        return "\n".join([*lines, f"residual_var {self.residual_var:.4g}"])


def fit_dropout(
    setup: Setup, method: Method | None, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the rate and residual variance that minimize the NLL of held-out data."""
    x = batches[0][0]
    method = method or _choose_method(setup, x)
    in_closed_form = _is_closed_form(setup, method, x, search)
    find = search_closed_form if in_closed_form else search_grid
    resolved = search.resolve(setup.task, method)
    changed, fit = find(setup, method, batches, resolved)
    if search.fit_residual_var is None and not resolved.fit_residual_var:
        rates = fit.rate if isinstance(fit.rate, tuple) else (fit.rate or 0.0,)
        tried = [rate for rate in search.grid if rate > 0]
        if setup.task == "regression" and len(tried) > 1 and max(rates) >= max(tried):
            # Dropout has to stand for errors that no rate explains, such as noise of targets.
            return find(setup, method, batches, replace(resolved, fit_residual_var=True))
    return changed, fit


def _choose_method(setup: Setup, x: object) -> Method:
    """The method that "auto" will use once there is a rate.

    Where it would sample because the network is small, gradients find the rate all the same: over
    many inputs their errors average.
    """
    setup = _with_a_rate(setup)
    method = choose(setup, x)[0]
    if outputs_of(setup, x) > MOST_OUTPUTS or why_no_gradients(setup, x) is not None:
        return method
    return gradients.METHOD


def _with_a_rate(setup: Setup) -> Setup:
    """With dropout at any rate, to see what the model is like with masks."""
    return setup if setup.rate is not None else setup.with_(rate=0.1)


def _is_closed_form(setup: Setup, method: Method, x: object, search: Search) -> bool:
    """Whether the search is in closed form; an error if it cannot be and was asked for."""
    only = [option for option in ("per_layer", "fit_noise") if getattr(search, option)]
    if search.search == "grid":
        if only:
            raise ValueError(
                f'`{only[0]}` needs `search="closed_form"`; a grid has no room for it.'
            )
        return False
    is_wanted = search.search == "closed_form" or bool(only)
    if is_wanted and not method.in_closed_form:
        known = [known.name for known in METHODS.values() if known.in_closed_form]
        raise ValueError(
            f'The method "{method}" has no closed form; use one of {known}, or `search="grid"`.'
        )
    if is_wanted and setup.task != "regression":
        raise ValueError(
            "Class probabilities have no closed form: where they saturate their variance is far "
            'from first order. Use `search="grid"`.'
        )
    if isinstance(setup.output, Gaussian):  # The closed form knows the sources' variances alone.
        return False
    if is_wanted or setup.task != "regression" or not method.has_budget:
        return is_wanted
    return why_no_gradients(_with_a_rate(setup), x) is None


def _warn_at_the_edge(rate: float | None, grid: Sequence[float]) -> None:
    """Warns if a larger or a smaller rate than any that was tried may be better."""
    positive = [r for r in grid if r]
    if len(positive) < 2 or rate is None or min(positive) < rate < max(positive):
        return
    sentence = (
        f"The best rate, {rate:.3g}, is the smallest that was tried: dropout does not explain the "
        "errors. Was the held-out data used in training, or is the noise too large?"
    )
    if rate >= max(positive):
        sentence = (
            f"The best rate, {rate:.3g}, is the largest that was tried, and the variance is still "
            "too small. Noisy targets are a common reason; a residual variance accounts for them: "
            "`fit_residual_var=True`, the default."
        )
    warnings.warn(sentence, HowsureWarning, stacklevel=6)


def search_grid(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the best of all rates that were tried, and the curve."""
    grid: tuple[float | None, ...] = search.grid if method.has_rate else (None,)
    searched = setup.with_(samples=search.samples, shared_masks=False, residual_var=0.0)
    if not search.fit_residual_var:  # Known now, and not only after all rates.
        half = searched.with_(rate=0.5) if method.has_rate else searched
        check_outputs(_score(half, method, batches[0], search).var)
    curve = []
    for rate in progress(grid, search.show_progress, f"fit {method}"):
        at_rate = searched if rate is None else searched.with_(rate=rate)
        curve.append(_sample_point(at_rate, method, batches, search))
    best = min(range(len(curve)), key=lambda i: curve[i].nll)
    if not math.isfinite(curve[best].nll):
        raise ValueError(NO_LIKELIHOOD)
    rate, residual_var = grid[best], curve[best].residual_var
    _warn_at_the_edge(rate, search.grid)
    fit = Fit(
        tuple(math.nan if r is None else r for r in grid),
        tuple(point.nll for point in curve),
        tuple(point.error for point in curve),
        rate,
        residual_var,
        search.objective,
        search.samples,
        curve[best].count,
        best_nll=curve[best].nll,
    )
    return setup.with_(residual_var=residual_var, rate=setup.rate if rate is None else rate), fit


@dataclass(frozen=True)
class _Point:
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
    def of(cls, scored: Scored, search: Search) -> _Point:
        """The mean over all inputs, and its standard error."""
        residual_var = fitted_residual_var(scored) if search.fit_residual_var else 0.0
        per_input = scored.nll(residual_var).reshape(scored.count, -1).mean(1)
        error = float(per_input.std() / math.sqrt(scored.count)) if scored.count > 1 else math.inf
        nll = float(per_input.mean())
        # A variance of 0 has no likelihood, which is worse than all else.
        return cls(nll if math.isfinite(nll) else math.inf, error, residual_var, scored.count)


def _sample_point(setup: Setup, method: Method, batches: Batches, search: Search) -> _Point:
    """The objective of one setting, with the same random numbers as at every other."""

    def score(index: int, batch: tuple[object, Tensor]) -> Scored:
        return _score(setup.with_(seed=setup.seed + 1000 * index), method, batch, search)

    return _Point.of(Scored.joined(search.share.map(score, batches)), search)


def _score(setup: Setup, method: Method, batch: tuple[object, Tensor], search: Search) -> Scored:
    x, target = batch
    prediction = method(setup, x)
    check_targets(prediction, target, search.objective)
    return OBJECTIVES[search.objective](prediction, target).raised(search.floor or 0.0)


def search_closed_form(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Setup, Fit]:
    """The setup with the best rates, residual variance and noise, and the curve over the rates.

    One pass over the data gives all terms of the variance. The slopes of a network depend on the
    noise inside it, so the pass is repeated at the best rates until convergence; and one sampled
    run confirms the result.
    """
    terms, best = _settle(setup, method, batches, search)
    rates = tuple(_rate_of(best.odds).tolist())
    # A layer may well have no rate, so that of many only the largest is looked at.
    is_inside = search.per_layer and max(rates) < max(search.grid)
    _warn_at_the_edge(None if is_inside else max(rates), search.grid)
    rate = rates if search.per_layer else rates[0]
    noise = setup.noise if best.noise_scale == 1 else scaled(setup.noise, best.noise_scale)
    changed = setup.with_(rate=rate, residual_var=best.residual_var, noise=noise)
    # Every rate for all sites, extrapolated from the last pass.
    grid_odds = [_odds_of(torch.full_like(terms.odds, rate)) for rate in search.grid]
    curve = [_Point.of(terms.score(odds, best.noise_scale), search) for odds in grid_odds]
    confirmed = None
    if search.samples:
        sampled = changed.with_(samples=search.samples, shared_masks=False)
        sampling = sampling_for(changed) if method.has_budget else method
        as_it_is = replace(search, fit_residual_var=False)
        confirmed = _sample_point(sampled, sampling, batches, as_it_is).nll
    fit = Fit(
        search.grid,
        tuple(point.nll for point in curve),
        tuple(point.error for point in curve),
        rate,
        best.residual_var,
        search.objective,
        search.samples,
        len(terms.error),
        best.noise_scale,
        best.nll,
        confirmed,
        tuple(site.name for site in setup.sites(batches[0][0])),
    )
    return changed, fit


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch of held-out data with what does not depend on the rates.

    Attributes:
        x: The inputs.
        target: Their targets.
        plain: The plain network's output.
        diagonal: Mean and variance of the propagated noise, for diagonal methods.
    """

    x: object
    target: Tensor
    plain: Tensor
    diagonal: Prediction | None

    @classmethod
    def of(cls, setup: Setup, method: Method, x: object, target: Tensor) -> _Batch:
        """A batch, with one plain pass and for a diagonal method one of Gaussians."""
        with torch.no_grad():
            outputs = Pass(setup, x).plain()
        if len(outputs) != 1:
            raise ValueError(
                f"The model has {len(outputs)} outputs; wrap it so that it returns the one to "
                "fit on."
            )
        still = setup.with_(rate=None, residual_var=0.0)
        diagonal = ADF(still, x) if method.is_diagonal else None
        return cls(x, target, outputs[0].clone(), diagonal)


@dataclass(frozen=True, eq=False)
class Terms:
    """Squared errors and the parts of the variance, all (inputs, outputs) in double precision.

    Attributes:
        error: Squared errors at the odds at which the pass was made.
        data: The sensor's variance D.
        by_site: Variance per odds of every dropout site, M: (sites, ...).
        odds: The odds of the pass, (sites,).
    """

    error: Tensor
    data: Tensor
    by_site: Tensor
    odds: Tensor

    def model_var(self, odds: Tensor) -> Tensor:  # (sites,)
        """sum_l c_l M_l."""
        return torch.tensordot(odds, self.by_site, 1)

    def score(self, odds: Tensor, noise_scale: Tensor | float = 1.0) -> Scored:
        """The errors with the model's variance and the sensor's, without a residual one."""
        return Scored(self.error, self.model_var(odds) + noise_scale * self.data)

    @staticmethod
    def joined(parts: list[Terms]) -> Terms:
        """All inputs of several batches."""
        error, data = (torch.cat([getattr(p, name) for p in parts]) for name in ("error", "data"))
        return Terms(error, data, torch.cat([part.by_site for part in parts], 1), parts[0].odds)


def terms_of(setup: Setup, method: Method, batch: _Batch) -> Terms:
    """The terms of one batch, at the setup's rates."""
    # Masks alone: the method has no sensor noise, or propagates it without correlations.
    source = setup.with_(noise=None) if method.draws_masks else setup
    # Own points for every input: errors average over the held-out data.
    points = points_for(source, batch.x, source.once(probe_model, batch.x).layout)
    source = source.with_(samples=points, tolerance=None, shared_masks=False)
    prediction = gradients.METHOD(source, batch.x)
    budget = prediction.sources
    if budget is None:
        raise ValueError(
            f'The rate has no closed form here: {prediction.notes[0]} Use `search="grid"`.'
        )
    mean, data = prediction.mean.reshape(batch.plain.shape), prediction.data_var
    if batch.diagonal is not None:
        mean = mean + (batch.diagonal.mean - batch.plain).reshape(mean.shape)
        data = batch.diagonal.data_var
    plain = Prediction(mean, torch.ones_like(mean), torch.zeros_like(mean))
    check_targets(plain, batch.target, "gaussian")
    error = gaussian(plain, batch.target).error.detach()
    # The search is a matter of few numbers, on the CPU, whatever device the network is on.
    error, data = (part.reshape(len(part), -1).double().cpu() for part in (error, data))
    sites = setup.sites(batch.x)
    odds = _odds_of(torch.tensor(setup.rates(sites), dtype=torch.float64))
    variances = budget.variances.double().cpu()
    rows = zip(budget.names, budget.kinds, variances, strict=True)
    by_name = {name: var for name, kind, var in rows if kind == "dropout"}
    nothing = torch.zeros_like(variances[0])
    by_site = torch.stack([by_name.get(site.name, nothing) for site in sites])
    by_site = by_site / torch.where(odds > 0, odds, 1.0)[:, None, None]
    # A call that is one input has all its outputs in one row.
    return Terms(error, data, by_site.reshape(len(sites), *data.shape), odds)


def _odds_of(rate: Tensor) -> Tensor:
    """c = p / (1 - p), the variance of a mask with mean 1."""
    return rate / (1 - rate)


def _rate_of(odds: Tensor) -> Tensor:
    """p = c / (1 + c)."""
    return odds / (1 + odds)


def _settle(
    setup: Setup, method: Method, batches: Batches, search: Search
) -> tuple[Terms, _Optimum]:
    """The terms of a pass near the rates that are best for them, and these rates.

    The terms of a pass hold near its rates: masks and noise together make variance that grows
    faster than either, and counts as the sensor's. A step is therefore bounded, and rates are
    believed only if a pass was made near them; if they never converge, the best pass wins.
    """
    data = [_Batch.of(setup, method, x, target) for x, target in batches]
    # Between which odds the best ones lie: where a pass asked for more, and where for less.
    low = torch.zeros(len(setup.sites(batches[0][0])), dtype=torch.float64)
    high = torch.full_like(low, math.inf)
    odds = torch.full_like(low, _FIRST)
    if not search.fit_residual_var:  # Known now, and not only after a pass over all data.
        first = terms_of(
            setup.with_(rate=float(_rate_of(odds)[0]), residual_var=0.0), method, data[0]
        )
        check_outputs(first.score(first.odds).var)
    tried: list[tuple[Terms, _Optimum]] = []
    for number in range(_PASSES):
        rates = tuple(_rate_of(odds.clamp(min=_LEAST)).tolist())
        at_rates = setup.with_(rate=rates, residual_var=0.0)
        bar = progress(data, search.show_progress, f"fit {method}, pass {number + 1}")
        parts = search.share.map(lambda _, batch, at=at_rates: terms_of(at, method, batch), bar)
        terms = Terms.joined(parts)
        best = _find_optimum(terms, search)
        if number > 0 and _is_settled(terms, best):
            return terms, best
        odds = terms.odds
        # The odds of the pass itself, which need no extrapolation.
        there = _optimum_at(terms, torch.where(odds > 1.01 * _LEAST, odds, 0.0), search)
        if search.fit_noise and math.isfinite(there.nll):
            there = min(there, _descend(terms, there, search, sites=0), key=lambda o: o.nll)
        if number > 1 and there.nll - best.nll <= _FLAT:
            return terms, there
        tried.append((terms, there))
        if not search.per_layer:  # What one layer asks for depends on the others.
            low = torch.where(best.odds > odds, odds, low)
            high = torch.where(best.odds < odds, odds, high)
        # To the best odds if they are in reach, or between those that were tried.
        lowest = torch.where(odds > 1.01 * _FIRST, odds / _REACH, 0.0)
        aim = best.odds.clamp(lowest, (_REACH * odds).clamp(min=_FIRST))
        is_outside = (low > 0) & (high < math.inf) & ((aim <= low) | (aim >= high))
        odds = torch.where(is_outside, (low * high).sqrt(), aim)
    terms, best = min(tried, key=lambda pair: pair[1].nll)
    warnings.warn(
        f"The rate did not settle within {_PASSES} passes; the best one that was tried is taken "
        f'(NLL {best.nll:.3g}). `search="grid"` tries them all.',
        HowsureWarning,
        stacklevel=6,
    )
    return terms, best


def _is_settled(terms: Terms, best: _Optimum) -> bool:
    """The model variance is nearly that of the pass, or the difference does not matter."""
    before, after = (float(terms.model_var(odds).mean()) for odds in (terms.odds, best.odds))
    # Sites that move in opposite directions do not make up for each other.
    by_site = terms.by_site.mean((1, 2)) * (best.odds - terms.odds).abs()
    moved = max(abs(after - before), float(by_site.sum()))
    # Of large odds the total is no measure: it contains what noise makes together with masks.
    are_small = float(torch.maximum(terms.odds, best.odds).max()) <= 1.01 * _FIRST
    total = before + best.noise_scale * float(terms.data.mean()) + best.residual_var
    return moved <= _SETTLED * before or (are_small and moved <= _NEGLIGIBLE * total)


@dataclass(frozen=True, eq=False)
class _Optimum:
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


def _find_optimum(terms: Terms, search: Search) -> _Optimum:
    """The settings of least NLL: the best single rate first, then all free settings together."""
    tried = _odds_of(torch.tensor([rate for rate in search.grid if rate > 0], dtype=torch.float64))
    line = torch.logspace(*tried.log10().aminmax(), _LINE).tolist() if len(tried) else []
    starts = [torch.full_like(terms.odds, odds) for odds in (0.0, *line)]
    best = min((_optimum_at(terms, odds, search) for odds in starts), key=lambda o: o.nll)
    if not math.isfinite(best.nll):
        raise ValueError(NO_LIKELIHOOD)
    if float(best.odds.max()) == 0 and not search.fit_noise:
        return best
    largest, sites = 1.0, 0
    if len(tried):
        largest, sites = float(tried.max()), len(terms.odds) if search.per_layer else 1
    return min(best, _descend(terms, best, search, sites, largest), key=lambda o: o.nll)


def _optimum_at(terms: Terms, odds: Tensor, search: Search) -> _Optimum:
    """Given odds with the residual variance that suits; noise as stated, or as errors ask."""
    scales = [1.0]
    if search.fit_noise:  # The factor with which the mean squared error is as predicted.
        unexplained = float((terms.error - terms.model_var(odds)).mean())
        data = float(terms.data.mean())
        scales.append(unexplained / data if unexplained > 0 and data > 0 else 1.0)
    optima = []
    for scale in scales:
        scored = terms.score(odds, scale)
        residual_var = fitted_residual_var(scored) if search.fit_residual_var else 0.0
        nll = float(scored.nll(residual_var).mean())
        optima.append(_Optimum(odds, residual_var, scale, nll if math.isfinite(nll) else math.inf))
    return min(optima, key=lambda o: o.nll)


def _descend(
    terms: Terms, start: _Optimum, search: Search, sites: int, largest: float = 1.0
) -> _Optimum:
    """A local minimum in all free settings, by L-BFGS on their logarithms.

    As many odds are free as there are `sites`: one for each, a single one for all, or none. They
    are `largest` times a sigmoid, so that they stay in the range of the search.
    """
    has_residual = start.residual_var > 0
    share = (start.odds[:sites] / largest).clamp(1e-9, 1 - 1e-3)
    others = [start.residual_var] * has_residual + [start.noise_scale] * search.fit_noise
    point = torch.cat([torch.logit(share), torch.tensor(others).log().double()]).requires_grad_()

    def settings() -> tuple[Tensor, Tensor, Tensor]:
        rest = list(point[sites:].exp())
        residual_var = rest.pop(0) if has_residual else point.new_zeros(())
        scale = rest.pop(0) if search.fit_noise else point.new_ones(())
        if not sites:
            return start.odds, residual_var, scale
        return (largest * torch.sigmoid(point[:sites])).expand_as(terms.odds), residual_var, scale

    def nll() -> Tensor:
        odds, residual_var, scale = settings()
        scored = terms.score(odds, scale)
        assert scored.var is not None
        return Scored(scored.error, scored.var + residual_var).nll().mean()

    optimizer = torch.optim.LBFGS([point], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nll()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        odds, residual_var, scale = settings()
        odds = torch.where(odds < _NOTHING, torch.zeros_like(odds), odds)
        return _Optimum(odds.clone(), float(residual_var), float(scale), float(nll()))
