"""The methods, one module each; all have `predict(setup, x) -> Prediction`."""

from __future__ import annotations

from collections.abc import Callable
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

METHODS: dict[str, Callable[[Setup, Any], Prediction]] = {
    "gradients": gradients.predict,
    "sampled_adf": sampled_adf.predict,
    "adf": adf.predict,
    "mc_dropout": mc_dropout.predict,
    "noise_sampling": noise_sampling.predict,
    "linear": linear.predict,
    "constant": constant.predict,
    "heteroscedastic": heteroscedastic.predict,
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
