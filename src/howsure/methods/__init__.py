"""The methods, one module each; all have `predict(setup, x) -> Prediction`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from howsure.methods import (
    adf,
    constant,
    ensemble,
    gradients,
    heteroscedastic,
    linear,
    mc_dropout,
    noise_sampling,
    sampled_adf,
)
from howsure.methods.choice import choose as choose
from howsure.prediction import Prediction
from howsure.setup import Setup

Predict = Callable[[Setup, Any], Prediction]


def _without_rules(predict: Predict) -> Predict:
    """The method, with a note where the user has given rules that it does not ask for."""

    @functools.wraps(predict)
    def noted(setup: Setup, x: Any) -> Prediction:
        found = predict(setup, x)
        return replace(found, notes=(*found.notes, _UNUSED_RULES)) if setup.rules else found

    return noted


_UNUSED_RULES = (
    '`rules` is not used: it changes "adf" and "sampled_adf" alone, and this method runs the '
    "network itself."
)

METHODS: dict[str, Predict] = {
    "gradients": _without_rules(gradients.predict),
    "sampled_adf": sampled_adf.predict,
    "adf": adf.predict,
    "mc_dropout": _without_rules(mc_dropout.predict),
    "noise_sampling": _without_rules(noise_sampling.predict),
    "linear": _without_rules(linear.predict),
    "constant": _without_rules(constant.predict),
    "heteroscedastic": _without_rules(heteroscedastic.predict),
    "ensemble": ensemble.predict,
}

# Methods of earlier versions, and what takes their place.
RENAMED = {"adjoint": "gradients", "control_variate": "gradients"}


def check_method(name: str) -> None:
    """One clear sentence for a method that there is not, or no more."""
    if name in RENAMED:
        raise ValueError(
            f'The method "{name}" has gone: "{RENAMED[name]}" is more accurate and cheaper. Use '
            f'`method="{RENAMED[name]}"`, the default; see docs/gradients.md.'
        )
    if name != "auto" and name not in METHODS:
        raise ValueError(f"`method` must be one of {['auto', *sorted(METHODS)]}, not {name!r}.")
