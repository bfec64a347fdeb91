"""The options of `Uncertain.fit`, and for which part of the model's uncertainty each is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch

from howsure.fit.stress import Stress

# What stands for the model's own uncertainty.
ModelPart = Literal["auto", "posterior", "temperature", "dropout"]
# The paper searches "a log-range of 20 possible rates in [0, 1]", which cannot include its ends.
DEFAULT_RATES = (0.0, *torch.logspace(-3, math.log10(0.9), 20, dtype=torch.float64).tolist())


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of a fit.

    Attributes:
        inputs: "noisy" if the inputs carry the noise of deployment, as they must; "clean" adds
            the setup's noise to them.
        training_data: The training data set or loader, to warn if it is the held-out one.
        show_progress: Show a bar.
        train_inputs: Posterior and temperature: unlabeled inputs like those that the network was
            trained on, as a tensor, an array, a data set or a loader. Without them the inputs of
            `train` serve, or the held-out ones, in folds.
        stress: Posterior and temperature: corruptions that do not change the target, by which the
            growth of the uncertainty is fitted: "images", "tables", or functions of an input.
            "auto" are those of images, if inputs look like them and have at most 64 outputs, or one
            label each. With `None` it grows at the usual rate.
        growth: Posterior and temperature: whether the uncertainty grows with the distance from the
            known inputs.
        train: Posterior: labeled training data: (inputs, targets), a data set, a loader. For tables
            (few features, many rows): the errors of the 30 rows nearest to an input predict its
            own. At most 5,000 rows are kept, chosen at random.
        residual_var: Posterior: a known residual variance; `None` fits it.
        noise_factor: Posterior: a factor on the sensor's variance. The default is 1, so that
            `data_var` is due to the noise as stated; `None` fits a factor and adds a note.
        cap: Posterior: whether the variance is bounded by that of the targets.
        rates: Dropout: rates to try; by default 0 and 20 log-spaced ones from 0.001 to 0.9.
        samples: Dropout: Monte-Carlo samples at every rate, more than in use for a smooth curve:
            50, or of the method "gradients" as many points as its errors ask for.
        fit_residual_var: Dropout: also fit a constant residual variance, for noisy targets. By
            default for methods that have no other data variance, and where the best rate would be
            the largest that was tried.
        objective: Dropout: "gaussian", or for classification "one_hot" (as the paper's authors) or
            "categorical".
        floor: Dropout: smallest variance in the likelihood. By default 0, and for "one_hot" 1e-4 as
            in the authors' code: probabilities near 0 and 1 vary by next to nothing, and their
            logarithms would outweigh all errors.

    Examples:
        >>> hs.fit.FitOptions(inputs="clean").inputs  # held-out inputs without noise
        'clean'
    """

    inputs: Literal["noisy", "clean"] = "noisy"
    training_data: object = None
    show_progress: bool = True
    train_inputs: object = None
    stress: Stress | None = "auto"
    growth: bool = True
    train: object = None
    residual_var: float | None = None
    noise_factor: float | None = 1.0
    cap: bool = True
    rates: Sequence[float] | None = None
    samples: int | None = None
    fit_residual_var: bool | None = None
    objective: Literal["auto", "gaussian", "one_hot", "categorical"] = "auto"
    floor: float | None = None

    def __post_init__(self) -> None:
        """One clear sentence for each wrong option."""
        for name, allowed in (
            ("inputs", ("noisy", "clean")),
            ("objective", ("auto", "gaussian", "one_hot", "categorical")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed}, not {getattr(self, name)!r}.")
        for name in ("growth", "cap"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, not {getattr(self, name)!r}.")
        for name in ("residual_var", "noise_factor"):
            value = getattr(self, name)
            if isinstance(value, str) or (value is not None and not 0 <= value < math.inf):
                raise ValueError(f"`{name}` must be a finite number of 0 or more, not {value!r}.")
        if self.floor is not None and not self.floor >= 0:
            raise ValueError(f"`floor` must be a variance of 0 or more, not {self.floor}.")
        if not self.grid or not all(0 <= rate < 1 for rate in self.grid):
            raise ValueError("The rates to try must be numbers from 0 up to, but not including, 1.")

    @property
    def grid(self) -> tuple[float, ...]:
        """The dropout rates to try."""
        return tuple(DEFAULT_RATES if self.rates is None else self.rates)

    @property
    def given(self) -> tuple[str, ...]:
        """The options that are not at their defaults."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return tuple(
            name
            for name, (value, default) in values.items()
            if value is not default and not (isinstance(value, str | float) and value == default)
        )


_COMMON = ("inputs", "training_data", "show_progress")
_DISTANCES = ("train_inputs", "stress", "growth")
# The options of each part.
OPTIONS: dict[str, tuple[str, ...]] = {
    "posterior": (*_COMMON, *_DISTANCES, "train", "residual_var", "noise_factor", "cap"),
    "temperature": (*_COMMON, *_DISTANCES),
    "dropout": (*_COMMON, "rates", "samples", "fit_residual_var", "objective", "floor"),
}
