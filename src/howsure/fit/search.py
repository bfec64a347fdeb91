"""What a search is asked for, and what it found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from howsure.arrays import number_range
from howsure.fit.objectives import OBJECTIVES
from howsure.fit.options import FitOptions
from howsure.fit.share import WHOLE, Share
from howsure.methods import Method

# The paper searches "a log-range of 20 possible rates in [0, 1]", which cannot include its ends.
DEFAULT_RATES = (0.0, *torch.logspace(-3, math.log10(0.9), 20, dtype=torch.float64).tolist())
# The constant variance (called tau) of the paper's released code.
ONE_HOT_FLOOR = 1e-4
SEARCHES = ("auto", "grid", "closed_form")


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
        self._check_choice("search", SEARCHES)
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

    def objective_for(self, task: str) -> str:
        """The likelihood that is maximised."""
        if self.objective != "auto":
            return self.objective
        return "gaussian" if task == "regression" else "one_hot"

    def floor_for(self, task: str) -> float:
        """The smallest variance in the likelihood."""
        if self.floor is not None:
            return self.floor
        return ONE_HOT_FLOOR if self.objective_for(task) == "one_hot" else 0.0

    def with_residual_var(self, method: Method) -> bool:
        """Whether a residual variance is fitted."""
        if self.fit_residual_var is not None:
            return self.fit_residual_var
        return not method.has_data_var


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
        lines = [f"objective {self.objective}, {self.count} inputs, T = {self.samples}"]
        for rate, nll, error in zip(self.rates, self.nll, self.standard_error, strict=True):
            mark = "  <- best" if rate == self.rate else ""
            lines.append(f"rate {rate:8.4g}   NLL {nll:10.4f} +- {error:.4f}{mark}")
        return "\n".join([*self.notes, *lines, *self._found()])

    def _explained(self, gap: float) -> list[str]:
        """Why sampling gives another NLL, if the data can tell the two apart."""
        # A variance of T samples has chance errors, which cost 1 / (T - 1) on average.
        expected = 2 * min(self.standard_error) + 1 / max(1, self.samples - 1)
        if abs(gap) <= expected:
            return []
        return [
            f"They differ by {abs(gap):.2g}, more than chance ({expected:.2g}): the first is first "
            "order in the masks, the second has all of it. Which is right for your method shows "
            '`search="grid"`, which tries every rate by sampling.'
        ]

    def _found(self) -> list[str]:
        lines = []
        if isinstance(self.rate, tuple):
            lines += [f"{r:8.4g}   {site}" for r, site in zip(self.rate, self.sites, strict=True)]
        elif self.rate is not None and self.rate not in self.rates:
            lines.append(f"rate {self.rate:8.4g}   NLL {self.best_nll:10.4f}  <- best")
        if self.confirmed_nll is not None:
            lines.append(f"NLL {self.best_nll:.4f}, by sampling {self.confirmed_nll:.4f}")
            lines += self._explained(self.confirmed_nll - self.best_nll)
        if self.noise_scale != 1.0:
            lines.append(f"noise variance times {self.noise_scale:.4g}")
        return [*lines, f"residual_var {self.residual_var:.4g}"]
