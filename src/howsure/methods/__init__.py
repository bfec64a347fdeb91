"""The methods, one module each; all have `predict(setup, x) -> Prediction`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from howsure.methods import (
    adf,
    constant,
    ensemble,
    heteroscedastic,
    linear,
    mc_dropout,
    noise_sampling,
    sampled_adf,
)
from howsure.methods.choice import choose as choose
from howsure.methods.setup import Setup
from howsure.prediction import Prediction

METHODS: dict[str, Callable[[Setup, Any], Prediction]] = {
    "sampled_adf": sampled_adf.predict,
    "adf": adf.predict,
    "mc_dropout": mc_dropout.predict,
    "noise_sampling": noise_sampling.predict,
    "linear": linear.predict,
    "constant": constant.predict,
    "heteroscedastic": heteroscedastic.predict,
    "ensemble": ensemble.predict,
}
