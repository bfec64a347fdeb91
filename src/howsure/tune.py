"""Finds the dropout rate, and a residual variance, after training (Loquercio et al. 2020, Eq. 12).

minimise over the rate p: sum_d 1/2 log s_d + (y_d - yhat_d)**2 / (2 s_d), with s the total
*variance*, on held-out data that carries the noise of deployment.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.methods import METHODS, choose
from howsure.methods.setup import Setup
from howsure.noise import sample_of
from howsure.objectives import OBJECTIVES, Scored, check_targets, fitted_tau
from howsure.progress import progress
from howsure.validation_data import pairs_of, warn_if_clean, warn_if_training_data

# The paper searches "a log-range of 20 possible rates in [0, 1]", which cannot include its ends.
DEFAULT_RATES = (0.0, *torch.logspace(-3, math.log10(0.9), 20, dtype=torch.float64).tolist())
_WITH_RATE = (
    "sampled_adf",
    "mc_dropout",
    "noise_sampling",
    "adjoint",
    "control_variate",
    "heteroscedastic",
)


@dataclass(frozen=True)
class Fit:
    """The result of a search.

    Attributes:
        rates: The rates that were tried.
        nll: Mean negative log-likelihood per target at each rate, without 1/2 log 2 pi.
        standard_error: Its standard error over the data.
        rate: The best rate; `None` if the method has none.
        tau: The residual variance at the best rate.
        objective: Which likelihood was used.
        samples: Monte-Carlo samples per rate.
        count: Held-out inputs.
    """

    rates: tuple[float, ...]
    nll: tuple[float, ...]
    standard_error: tuple[float, ...]
    rate: float | None
    tau: float
    objective: str
    samples: int
    count: int

    def __str__(self) -> str:
        """A table of the curve, the best rate marked."""
        lines = [f"objective {self.objective}, {self.count} inputs, T = {self.samples}"]
        for rate, nll, error in zip(self.rates, self.nll, self.standard_error, strict=True):
            mark = "  <- best" if rate == self.rate else ""
            lines.append(f"rate {rate:8.4g}   NLL {nll:10.4f} +- {error:.4f}{mark}")
        return "\n".join([*lines, f"tau {self.tau:.4g}"])


def fit_method(
    setup: Setup,
    method: str,
    loader: Iterable[Any],
    *,
    rates: Sequence[float] | None = None,
    samples: int = 50,
    inputs: str = "noisy",
    fit_tau: bool | None = None,
    objective: str = "auto",
    training_data: Any = None,
    show_progress: bool = True,
) -> tuple[Setup, Fit]:
    """The setup with the rate and tau that minimise the NLL of held-out data.

    Args:
        setup: What to tune.
        method: The method's name, or "auto".
        loader: Batches of (inputs, targets), held out from training.
        rates: Rates to try; by default 0 and 20 log-spaced ones from 0.001 to 0.9.
        samples: Monte-Carlo samples during the search; more than in use, for a smooth curve.
        inputs: "noisy" if the inputs carry the noise of deployment, as they must; "clean" adds
            the setup's noise to them.
        fit_tau: Also fit a constant residual variance, for noisy targets. Default: only for the
            methods that have no other data variance.
        objective: "gaussian", or for classification "one_hot" (as the paper's authors) or
            "categorical".
        training_data: The training data set or loader, to warn if it is the held-out one.
        show_progress: Show a bar.
    """
    name = _method_for_fit(setup, method)
    if inputs not in ("noisy", "clean"):
        raise ValueError(f'`inputs` must be "noisy" or "clean", not {inputs!r}.')
    warn_if_training_data(loader, training_data)
    batches = list(pairs_of(loader))
    if inputs == "clean":
        batches = _with_noise(setup, batches)
    else:
        warn_if_clean(setup, batches)
    grid = _grid(name, rates)
    kind = _objective(setup, objective)
    with_tau = name in ("mc_dropout", "constant") if fit_tau is None else fit_tau
    searched = setup.with_(samples=samples, shared_masks=False, tau=0.0)
    curve = [
        _at_rate(searched, name, rate, batches, kind, with_tau)
        for rate in progress(grid, show_progress, f"fit {name}")
    ]
    return _finished(setup, name, grid, curve, kind, samples)


def _method_for_fit(setup: Setup, method: str) -> str:
    if method != "auto":
        return method
    return "mc_dropout" if setup.noise is None else choose(setup.with_(rate=0.1), None)[0]


def _grid(name: str, rates: Sequence[float] | None) -> tuple[float | None, ...]:
    if name not in _WITH_RATE:
        return (None,)
    grid = tuple(DEFAULT_RATES if rates is None else rates)
    if not grid or not all(0 <= rate < 1 for rate in grid):
        raise ValueError("The rates to try must be numbers from 0 up to, but not including, 1.")
    return grid


def _objective(setup: Setup, objective: str) -> str:
    if objective == "auto":
        return "gaussian" if setup.task == "regression" else "one_hot"
    if objective not in OBJECTIVES:
        raise ValueError(f"`objective` must be one of {sorted(OBJECTIVES)}, not {objective!r}.")
    return objective


def _with_noise(setup: Setup, batches: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    generator = torch.Generator().manual_seed(setup.seed)
    return [(sample_of(setup.noise, x, generator), y) for x, y in batches]


@dataclass(frozen=True)
class _Point:
    nll: float
    error: float
    tau: float
    count: int


def _at_rate(
    setup: Setup,
    name: str,
    rate: float | None,
    batches: list[tuple[Any, Tensor]],
    objective: str,
    with_tau: bool,
) -> _Point:
    """The objective at one rate, with the same random numbers as at every other rate."""
    scored: list[Scored] = []
    for index, (x, target) in enumerate(batches):
        seeded = setup.with_(seed=setup.seed + 1000 * index)
        prediction = METHODS[name](seeded if rate is None else seeded.with_(rate=rate), x)
        check_targets(prediction, target, objective)
        scored.append(OBJECTIVES[objective](prediction, target))
    joined = Scored.joined(scored)
    tau = fitted_tau(joined) if with_tau else 0.0
    values = joined.nll(tau)
    per_input = values.reshape(joined.count, -1).mean(1)
    error = float(per_input.std() / math.sqrt(joined.count)) if joined.count > 1 else math.inf
    return _Point(float(per_input.mean()), error, tau, joined.count)


def _finished(
    setup: Setup,
    name: str,
    grid: tuple[float | None, ...],
    curve: list[_Point],
    objective: str,
    samples: int,
) -> tuple[Setup, Fit]:
    best = min(range(len(curve)), key=lambda i: curve[i].nll)
    if not math.isfinite(curve[best].nll):
        raise ValueError(
            "The total variance is 0 at every rate, so no likelihood is defined; give the "
            "sensor's noise or set `fit_tau=True`."
        )
    rate, tau = grid[best], curve[best].tau
    if rate is not None:
        _warn_at_the_edge(grid, best)
    changed = setup.with_(tau=tau) if rate is None else setup.with_(tau=tau, rate=rate)
    fit = Fit(
        tuple(math.nan if r is None else r for r in grid),
        tuple(point.nll for point in curve),
        tuple(point.error for point in curve),
        rate,
        tau,
        objective,
        samples,
        curve[best].count,
    )
    return changed, fit


def _warn_at_the_edge(grid: tuple[float | None, ...], best: int) -> None:
    rate = grid[best]
    positive = [r for r in grid if r]
    if len(positive) < 2 or rate is None:
        return
    if rate == max(positive):
        warnings.warn(
            f"The best rate, {rate:.3g}, is the largest that was tried: the variance is too small "
            "even so. Noisy targets are a common reason; try `fit_tau=True`.",
            stacklevel=4,
        )
    elif rate in (0.0, min(positive)):
        warnings.warn(
            f"The best rate, {rate:.3g}, is the smallest that was tried: dropout does not explain "
            "the errors. Was the held-out data used in training, or is the noise too large?",
            stacklevel=4,
        )
