"""The methods, one module each; all have `predict(setup, x) -> Prediction`."""

from __future__ import annotations

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
from howsure.methods.guard import Predict, guarded
from howsure.methods.guard import choose as choose

# Models that draw random numbers are sampled by these, or by their members.
_SAMPLE = (gradients, linear, noise_sampling, ensemble)
# The others run the network itself, whatever rules there are.
_HAVE_RULES = (adf, sampled_adf, ensemble)

METHODS: dict[str, Predict] = {
    name: guarded(name, module.predict, may_draw=module in _SAMPLE, has_rules=module in _HAVE_RULES)
    for name, module in {
        "gradients": gradients,
        "sampled_adf": sampled_adf,
        "adf": adf,
        "mc_dropout": mc_dropout,
        "noise_sampling": noise_sampling,
        "linear": linear,
        "constant": constant,
        "heteroscedastic": heteroscedastic,
        "ensemble": ensemble,
    }.items()
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
