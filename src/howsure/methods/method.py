"""What a method is: its name, its function, what it can do, and how it is called.

Others ask a `Method` what it uses and what `fit` finds for it. It leaves nothing behind: every
pass runs on a copy of what the model could write, and random numbers stay the caller's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from howsure.gaussian_output import Gaussian
from howsure.isolation import modules_of, random_state_kept
from howsure.multipliers.dry_run import uncounted_dropout
from howsure.prediction import Prediction
from howsure.private_torch import AnyDropout
from howsure.probe import DRAWS, RANDOM, probe_model
from howsure.problem import Probe, Sources
from howsure.setup import Setup
from howsure.trees import clone_tensors, is_tracing

Predict = Callable[[Setup, Any], Prediction]

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
    '`rules` is not used: it applies to "adf" and "sampled_adf" only, and this method runs the '
    "network itself."
)


class Uses(enum.Flag):
    """What the predictions of a method are made of."""

    NOTHING = 0
    # Fixed noisy points with a backward pass each, which show the variance of every source.
    POINTS = enum.auto()
    # Dropout masks: there is nothing to sample without a rate, and a file may take them as inputs.
    MASKS = enum.auto()
    # New noise in every call, which neither a file nor a compiled program can draw.
    NOISE = enum.auto()
    # The moment rules; other methods run the network itself, whatever rules are given.
    RULES = enum.auto()
    # Random numbers that the model draws itself; other methods refuse models that do.
    MODEL = enum.auto()


class Fits(enum.Flag):
    """What `fit` finds for a method."""

    NOTHING = 0
    # A dropout rate.
    RATE = enum.auto()
    # A residual variance, for methods without a data variance of their own.
    RESIDUAL_VAR = enum.auto()
    # A posterior over multipliers, or a temperature; DENSE: at every pixel of dense outputs.
    POSTERIOR = enum.auto()
    DENSE_POSTERIOR = enum.auto()


@dataclass(frozen=True, eq=False, repr=False)
class Method:
    """A way to a prediction, as `Uncertain(method=...)` takes it.

    Attributes:
        name: What users write and a prediction says.
        predict: From a setup and an input to a prediction.
        uses: What its predictions are made of.
        fits: What `fit` finds for it.
    """

    name: str
    predict: Predict
    uses: Uses = Uses.NOTHING
    fits: Fits = Fits.NOTHING

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
        """The prediction; the caller's random numbers stay as they were."""
        self.check(setup)
        if is_tracing():
            prediction = self.predict(setup, x)
        elif setup._cache.get(DRAWS, True):  # or not known yet
            with random_state_kept():
                prediction = self._checked(setup, x)
        else:
            prediction = self._checked(setup, x)
        notes = () if not setup.rules or Uses.RULES in self.uses else (UNUSED_RULES,)
        if setup.placement.kind == "existing" and not is_tracing():
            notes += setup.cached(_uncounted, x)
        return replace(prediction, notes=(*prediction.notes, *notes)) if notes else prediction

    def _checked(self, setup: Setup, x: Any) -> Prediction:
        """The prediction; an error if the model is random and the method cannot deal with it."""
        if Uses.MODEL in self.uses:
            return self.predict(setup, x)
        numbers = torch.get_rng_state()
        prediction = self.predict(setup, x)
        has_drawn = setup._cache.get(DRAWS, False) or "draws" in setup._cache  # in samples
        has_drawn = has_drawn or not torch.equal(numbers, torch.get_rng_state())
        # Another thread may have drawn them.
        if has_drawn and setup.cached(probe_model, x).is_random:
            raise ValueError(
                f'The method "{self}" needs a deterministic model, but {RANDOM}. Use '
                '`method="noise_sampling"`, which samples these as well, or switch them off.'
            )
        return prediction

    def check(self, setup: Setup) -> None:
        """An error if the method has no room for what `fit` found."""
        if not setup.is_fitted:
            return
        model, classes = setup.variance_model, setup.temperature_model
        room = Fits.POSTERIOR
        if model is not None and model.dense:
            room = Fits.DENSE_POSTERIOR
        if classes is not None:
            room = Fits.DENSE_POSTERIOR | (Fits.NOTHING if classes.dense else Fits.POSTERIOR)
        elif model is not None and model.posterior is None:
            room = Fits.POSTERIOR | Fits.DENSE_POSTERIOR
        if not self.fits & room:
            raise ValueError(
                f'The method "{self}" cannot use what `fit` found: use "auto", or fit again with '
                '`model="dropout"`.'
            )
        if setup.temperature_model is not None and setup.task == "regression":
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


# The methods by name; the package enters its own.
METHODS: dict[str, Method] = {}
# Methods of earlier versions, and what takes their place.
RENAMED = {"adjoint": "gradients", "control_variate": "gradients"}


def check_method(name: str) -> None:
    """One clear sentence for a method that does not exist, or no longer."""
    if name in RENAMED:
        raise ValueError(
            f'The method "{name}" was removed: "{RENAMED[name]}" is more accurate and cheaper. Use '
            f'`method="{RENAMED[name]}"`, the default; see docs/gradients.md.'
        )
    if name != "auto" and name not in METHODS:
        raise ValueError(f"`method` must be one of {['auto', *sorted(METHODS)]}, not {name!r}.")


def method_of(method: str | Method) -> Method | None:
    """The method of a name, or itself; `None` for "auto", which chooses for each input."""
    if isinstance(method, Method):
        return method
    check_method(method)
    return METHODS.get(method)


def _uncounted(setup: Setup, x: Any) -> tuple[str, ...]:
    """What to say about randomness of the model's own that "existing" leaves out."""
    return uncounted_dropout(setup.model, clone_tensors(x))


def no_uncertainty_message(setup: Setup) -> str:
    """What to say about a setup without anything random, and what to do."""
    has_dropout = any(
        isinstance(module, AnyDropout)
        or (isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0)
        for module in modules_of(setup.model)
    )
    hint = (
        " The model's own dropout layers are off in eval mode; to include them at their own "
        'rates, pass `placement="existing"`.'
    )
    return (
        "No source of uncertainty: pass `noise=` or call `.fit(loader)` first."
        f"{hint if has_dropout else ''}"
    )


def note_without_uncertainty(setup: Setup, probe: Probe, sources: Sources) -> tuple[str, ...]:
    """A note if neither inputs nor units nor the model itself vary, and no constant is set."""
    varies = sources.all or probe.is_random or setup.rate is not None or setup.is_fitted
    varies = varies or isinstance(setup.output, Gaussian)
    if varies or is_tracing() or bool(torch.as_tensor(setup.residual_var).any()):
        return ()
    return () if setup.placement.kind == "existing" else (no_uncertainty_message(setup),)
