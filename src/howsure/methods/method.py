"""What a method is: its name, its function, what it can do, and how it is called.

Everyone else asks a `Method` what it can do, and compares no names. It leaves nothing behind: every
pass starts from the state in which the caller left the model, and the model's state and torch's
random numbers stay the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from howsure.gradients.layout import RANDOM, Verdict, layout_of
from howsure.gradients.sources import Sources
from howsure.methods.passes import one_at_a_time
from howsure.methods.state import renewed, restored
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.trees import is_tracing, modules_of

Predict = Callable[[Setup, Any], Prediction]
T = TypeVar("T")
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

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

UNUSED_RULES = (
    '`rules` is not used: it changes "adf" and "sampled_adf" alone, and this method runs the '
    "network itself."
)


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
        found = self.predict(setup, x) if is_tracing() else self._careful(setup, x)
        if not setup.rules or self.has_rules:
            return found
        return replace(found, notes=(*found.notes, UNUSED_RULES))

    def _careful(self, setup: Setup, x: Any) -> Prediction:
        """The prediction; an error if the model is random and the method cannot deal with it."""
        if self.may_draw:
            return from_one_state(self.predict, setup, x)
        numbers = torch.get_rng_state()
        try:
            found = from_one_state(self.predict, setup, x)
        except BaseException:
            torch.set_rng_state(numbers)
            raise
        drawn = "draws" in setup._facts or not torch.equal(numbers, torch.get_rng_state())
        # Another thread may have drawn them.
        if drawn and from_one_state(lambda own, at: own.once(layout_of, at), setup, x).random:
            torch.set_rng_state(numbers)
            raise ValueError(
                f'The method "{self}" takes the model for a fixed function, but {RANDOM}. Use '
                '`method="noise_sampling"`, which samples these as well, or switch them off.'
            )
        return found

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


def nothing_unsure(setup: Setup) -> str:
    """What to say about a setup without anything random, and what to do."""
    has_dropout = any(isinstance(module, _DROPOUTS) for module in modules_of(setup.model))
    own = (
        " The model's own dropout layers are off in eval mode; to count them, at their own rates, "
        'give `placement="existing"`.'
    )
    return (
        "There is nothing to be unsure about: give the sensor's `noise`, or fit the model's own "
        f"uncertainty with `.fit(loader)`.{own if has_dropout else ''}"
    )


def about_nothing(setup: Setup, verdict: Verdict, sources: Sources) -> tuple[str, ...]:
    """A note if neither inputs nor units nor the model itself vary, and no constant is set."""
    varies = sources.names or verdict.random or setup.rate is not None or setup.is_fitted
    if varies or is_tracing() or bool(torch.as_tensor(setup.residual_var).any()):
        return ()
    return () if setup.placement.kind == "existing" else (nothing_unsure(setup),)


def from_one_state(predict: Callable[[Setup, Any], T], setup: Setup, x: Any) -> T:
    """The prediction with every pass from the same state of the model."""
    model, key = setup.model, ("state", id(setup.model))
    # The members of a list are predicted one by one.
    if not isinstance(model, nn.Module) or isinstance(
        model, (torch.jit.ScriptModule, nn.ModuleList)
    ):
        return predict(setup, x)
    # A model that has no state on the first call has none later: looking takes as long as a small
    # network.
    if _serves_many(setup, key):
        return predict(setup, x)
    with one_at_a_time:
        twin = setup._facts.get(key)
        if twin is None:
            with restored(model) as state:
                found = predict(setup, x)
                has_changed = state.restore()
            twin = renewed(model) if has_changed else None
            setup.keep(key, twin)
            if not has_changed:
                return found
        return predict(setup.with_(model=twin), x)


def _serves_many(setup: Setup, key: Hashable) -> bool:
    """Whether several threads may run the model: it neither writes to itself nor draws numbers."""
    return setup._facts.get(key, key) is None and RANDOM not in setup._facts
