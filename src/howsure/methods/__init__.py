"""The methods, one module each, which ends with its `METHOD`: a function and what it uses."""

from __future__ import annotations

from howsure.methods import ensemble, gradients, heteroscedastic, linear, propagation, sampling
from howsure.methods.choice import Choice as Choice
from howsure.methods.choice import choose as choose
from howsure.methods.method import Fits as Fits
from howsure.methods.method import Method as Method
from howsure.methods.method import MethodName as MethodName
from howsure.methods.method import Uses as Uses
from howsure.methods.sampling import sampling_for as sampling_for

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        propagation.ADF,
        linear.METHOD,
        gradients.METHOD,
        sampling.MC_DROPOUT,
        sampling.NOISE_SAMPLING,
        propagation.SAMPLED_ADF,
        propagation.CONSTANT,
        heteroscedastic.METHOD,
        ensemble.METHOD,
    )
}

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
