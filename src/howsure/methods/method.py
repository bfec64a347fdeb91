"""What a method is: its name, its function, and what it can do.

Everyone else asks a `Method` what it can do, and compares no names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from howsure.methods.guard import Predict, guarded
from howsure.prediction import Prediction
from howsure.setup import Setup

MethodName = Literal[
    "auto",
    "adf",
    "constant",
    "ensemble",
    "gradients",
    "heteroscedastic",
    "linear",
    "mc_dropout",
    "noise_sampling",
    "sampled_adf",
]


@dataclass(frozen=True, eq=False, repr=False)
class Method:
    """A way to a prediction, as `Uncertain(method=...)` takes it.

    Attributes:
        name: What users write and a prediction says.
        predict: From a setup and an input to a prediction.
        may_draw: It samples models that draw random numbers themselves; others refuse them.
        has_rules: It asks the moment rules; others run the network itself, whatever rules are
            given.
        has_budget: Its variance comes from backward passes, so it knows the variance of every
            source, and a rate is found in closed form unless the user wants a grid.
        has_data_var: It knows a data variance; without one, a residual variance is fitted.
        has_rate: `fit` finds a dropout rate for it.
        has_posterior: `fit` can give it a posterior over masks, or a temperature.
        has_dense_posterior: Likewise over those of a last layer that is the same at every pixel.
        in_closed_form: The rate may be found from the variance of every source.
        draws_noise: Every call draws noise, which neither a file nor a compiled program can.
        draws_masks: Its samples differ in their dropout masks alone: there is nothing to sample
            without a rate, and a file may take the masks as inputs.
        needs_noise: Without sensor noise there is nothing for it to do.
        is_sampling: It is the Monte-Carlo reference that an audit compares others with.
        is_diagonal: It propagates variances and no covariances, as the paper does.
        audited: The options with which an audit tries it unless told otherwise, once for each.
    """

    name: str
    predict: Predict
    may_draw: bool = False
    has_rules: bool = False
    has_budget: bool = False
    has_data_var: bool = True
    has_rate: bool = False
    has_posterior: bool = False
    has_dense_posterior: bool = False
    in_closed_form: bool = False
    draws_noise: bool = False
    draws_masks: bool = False
    needs_noise: bool = False
    is_sampling: bool = False
    is_diagonal: bool = False
    audited: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """One clear sentence for what is no method."""
        if not self.name.isidentifier() or self.name == "auto":
            raise ValueError(f"The name of a method must be a word, not {self.name!r}.")
        if not callable(self.predict):
            raise TypeError(
                f'`predict` of the method "{self.name}" must be a function of a setup and an '
                f"input, not a {type(self.predict).__name__}."
            )

    def __call__(self, setup: Setup, x: Any) -> Prediction:
        """The prediction; the model and the caller's random numbers stay as they were."""
        self.check(setup)
        run = guarded(self.name, self.predict, may_draw=self.may_draw, has_rules=self.has_rules)
        return run(setup, x)

    def check(self, setup: Setup) -> None:
        """An error if the method has no room for what `fit` found."""
        model, classes = setup.variance_model, setup.temperature_model
        is_dense = model is not None and model.head is not None
        is_dense = is_dense or (classes is not None and classes.dense)
        if setup.is_fitted and not (self.has_dense_posterior if is_dense else self.has_posterior):
            raise ValueError(
                f'The method "{self}" has no room for what `fit` found: use "auto", or fit again '
                'with `model="dropout"`.'
            )
        if setup.temperature_model is not None and setup.task != "classification":
            raise ValueError(
                "A temperature was fitted, which is for classes; use "
                '`task="classification"`, or fit again.'
            )

    def __str__(self) -> str:
        """The name."""
        return self.name

    def __repr__(self) -> str:
        """The name, in one line."""
        return f"Method({self.name})"
