"""The paper's dropout: the rate that is best for held-out data, found after training.

The method itself runs at every rate of a grid, with the same random numbers at each. The best rate,
with a residual variance if wanted, has the smallest mean of 1/2 log s + (y - yhat)^2 / (2 s), s the
total *variance* (Loquercio et al. 2020, Eq. 12), on data that carries the noise of deployment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from howsure.errors import warn
from howsure.fit.held_out import Batches, points_for
from howsure.fit.likelihood import Scored, check_outputs, fitted_residual_var
from howsure.fit.options import FitOptions
from howsure.methods import gradients
from howsure.methods.choice import choose, outputs_of
from howsure.methods.gradients import why_no_gradients
from howsure.methods.method import Fits, Method, Uses
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import number_range

SAMPLES = 50
# The constant variance (called tau) of the paper's released code.
ONE_HOT_FLOOR = 1e-4
NO_LIKELIHOOD = (
    "Some predictions have a variance of 0 at every rate, where the likelihood is undefined; set "
    "`fit_residual_var=True`."
)


@dataclass(frozen=True, repr=False)
class Fit:
    """The result of a search.

    Attributes:
        rates: The rates that were tried.
        nll: Mean negative log-likelihood per target at each rate, without 1/2 log 2 pi.
        standard_error: Its standard error over the data.
        rate: The best rate; `None` if the method has none.
        residual_var: The residual variance at the best rate.
        objective: Which likelihood was used.
        samples: Monte-Carlo samples, or points, per rate.
        count: Held-out inputs.
        best_nll: The NLL at the result.
        notes: What a user should know about the way in which it was found.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
        >>> x = torch.randn(100, 3)
        >>> target = model(x).detach() + 0.1 * torch.randn(100, 1)
        >>> sure = hs.Uncertain(model)
        >>> found = sure.fit(x, target, model="dropout", show_progress=False)
        >>> found.rate in found.rates
        True
    """

    rates: tuple[float, ...]
    nll: tuple[float, ...]
    standard_error: tuple[float, ...]
    rate: float | None
    residual_var: float
    objective: str
    samples: int
    count: int
    best_nll: float = math.nan
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What was found, in one line."""
        rate = "none" if self.rate is None else number_range([torch.tensor(self.rate)])
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
        return "\n".join([*lines, f"residual_var {self.residual_var:.4g}"])


def fit_dropout(
    setup: Setup, method: Method | None, batches: Batches, options: FitOptions
) -> tuple[Setup, Fit]:
    """The setup with the rate and residual variance that minimize the NLL of held-out data."""
    x, task = batches[0][0], setup.task
    method = method or _choose_method(setup, x)
    objective, floor = options.objective, options.floor
    if objective == "auto":
        objective = "gaussian" if task == "regression" else "one_hot"
    if floor is None:
        floor = ONE_HOT_FLOOR if objective == "one_hot" else 0.0
    samples = options.samples
    if samples is None:
        samples = points_for(_with_a_rate(setup), x) if Uses.POINTS in method.uses else SAMPLES
    searched = setup.replace(samples=samples, tolerance=None, shared_masks=False, residual_var=0.0)

    def score(index: int, rate: float | None) -> Scored:
        """A batch at one rate, with the same random numbers as at every other."""
        at_rate = searched if rate is None else searched.replace(rate=rate)
        x, target = batches[index]
        prediction = method(at_rate.replace(seed=setup.seed + 1000 * index), x)
        return Scored.of(prediction, target, objective, floor)

    grid: Sequence[float | None] = options.grid if Fits.RATE in method.fits else [None]
    has_residual = options.fit_residual_var
    if has_residual is None:
        has_residual = Fits.RESIDUAL_VAR in method.fits
    if not has_residual:  # Known now, and not only after all rates.
        check_outputs(score(0, 0.5 if Fits.RATE in method.fits else None).var)
    # Dropout may have to stand for errors that no rate explains, such as noise of targets.
    may_add = options.fit_residual_var is None and not has_residual and task == "regression"
    count = 0
    curves: dict[bool, list[_Point]] = {has: [] for has in (has_residual, has_residual or may_add)}
    for rate in progress(grid, options.show_progress, f"fit {method}"):
        scored = Scored.joined([score(index, rate) for index in range(len(batches))])
        count = len(scored.error)
        for has, points in curves.items():
            points.append(_Point.of(scored, fitted_residual_var(scored) if has else 0.0))
    curve = curves[has_residual]
    best = _best(curve, grid)
    tried = [rate for rate in options.grid if rate > 0]
    is_at_the_top = len(tried) > 1 and (grid[best] or 0.0) >= max(tried)
    if may_add and is_at_the_top:
        curve = curves[True]
        best = _best(curve, grid)
    fit = Fit(
        tuple(math.nan if rate is None else rate for rate in grid),
        tuple(point.nll for point in curve),
        tuple(point.error for point in curve),
        grid[best],
        curve[best].residual_var,
        objective,
        samples,
        count,
        best_nll=curve[best].nll,
    )
    rate = setup.rate if fit.rate is None else fit.rate
    return setup.replace(residual_var=fit.residual_var, rate=rate), fit


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
    return setup if setup.rate is not None else setup.replace(rate=0.1)


@dataclass(frozen=True)
class _Point:
    """One point of the curve.

    Attributes:
        nll: Mean NLL per target; infinite where some variance is 0, which is worse than all else.
        error: Its standard error over the inputs.
        residual_var: The residual variance.
    """

    nll: float
    error: float
    residual_var: float

    @classmethod
    def of(cls, scored: Scored, residual_var: float) -> _Point:
        """The mean over all inputs, and its standard error."""
        by_input = scored.nll(residual_var).reshape(len(scored.error), -1).mean(1)
        count, nll = len(by_input), float(by_input.mean())
        error = float(by_input.std() / math.sqrt(count)) if count > 1 else math.inf
        return cls(nll if math.isfinite(nll) else math.inf, error, residual_var)


def _best(curve: Sequence[_Point], grid: Sequence[float | None]) -> int:
    """The index of the least NLL; a warning if one beyond those that were tried may be better."""
    best = min(range(len(curve)), key=lambda i: curve[i].nll)
    if not math.isfinite(curve[best].nll):
        raise ValueError(NO_LIKELIHOOD)
    rate, positive = grid[best], [rate for rate in grid if rate]
    if len(positive) < 2 or rate is None or min(positive) < rate < max(positive):
        return best
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
    warn(sentence)
    return best
