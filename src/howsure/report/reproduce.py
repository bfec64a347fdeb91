"""What was run, and what it takes to run it again: facts, plain data, and code."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import howsure
from howsure.noise import Constant, decode_tensor
from howsure.posterior.novelty import quantile_at, share_below
from howsure.prediction import Prediction
from howsure.report.options import Options
from howsure.report.readings import percent
from howsure.trees import TensorTree

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

# Settings that fit on a line.
_SHORT = ("task", "samples", "tolerance", "prediction", "seed", "batch_dim", "chunk", "fallback")
# Where the state is, beside the page; `write` puts the page's own name in its place.
STATE_FILE = "report.fit.pt"
# On which numbers may depend.
_VERSIONS = {
    "howsure": howsure.__version__,
    "torch": str(torch.__version__),
    "numpy": np.__version__,
    "python": platform.python_version(),
}


def facts(sure: Uncertain, prediction: Prediction, inputs: int) -> tuple[tuple[str, str], ...]:
    """What was run, for people; the prediction is that at the sensor's own noise."""
    setup, method = sure.setup, prediction.method or sure.method
    parameters = sum(p.numel() for p in sure.model.parameters())
    rate, residual = setup.rate, setup.residual_var
    if isinstance(rate, tuple):
        rate = f"{len(rate)} rates from {min(rate):.3g} to {max(rate):.3g}"
    if isinstance(residual, Tensor):
        residual = "one per output"
    rows = {
        "Network": f"{type(sure.model).__name__}, {parameters:,} parameters",
        "Task": setup.task,
        "Method": f"{method} (chosen by auto)" if sure.method == "auto" else method,
        "Sensor noise": describe_noise(setup.noise),
        "Dropout rate": rate,
        "Points or samples": setup.samples,
        "Tolerance": setup.tolerance,
        "Standard error of a std": _standard_error(prediction),
        "First-order share": _first_order(prediction),
        "Residual variance": residual or None,
        "Novelty": _novelty(prediction, setup.variance_model or setup.temperature_model),
        "Data": f"{inputs:,} inputs with targets",
        "Seed": str(setup.seed),
        "Versions": ", ".join(f"{name} {version}" for name, version in _VERSIONS.items()),
    }
    return tuple(
        (name, f"{value:.3g}" if isinstance(value, float) else str(value))
        for name, value in rows.items()
        if value is not None
    )


def _standard_error(prediction: Prediction) -> str | None:
    """How far more points or samples would move the std, by the method's own account."""
    errors, stds = TensorTree(prediction.std_error).tensors, TensorTree(prediction.std).tensors
    if not errors or not bool(stds[0].any()):
        return None
    relative = (errors[0] / stds[0])[stds[0] > 0]
    return f"{percent(float(relative.median()))} of the std (median), as the method states"


def _first_order(prediction: Prediction) -> str | None:
    """How much of the variance a linearized network would find."""
    shares, of_what = prediction.linear_share, ""
    if shares is None and prediction.logits is not None:
        shares, of_what = prediction.logits.linear_share, " of the logits"
    if shares is None:
        return None
    return (
        f"{percent(float(shares.median()))} of the variance{of_what} (median); a linearized "
        "network misses the rest"
    )


def _novelty(prediction: Prediction, model: Any) -> str | None:
    """How unlike the held-out inputs of `fit` these are."""
    quantiles, novelty = getattr(model, "novelty_quantiles", None), prediction.joint_novelty
    if novelty is None or quantiles is None:
        return None
    auroc = float(share_below(quantiles, novelty).mean())
    beyond = float((novelty > quantile_at(quantiles, 0.95)).double().mean())
    return (
        f"AUROC {percent(auroc)} against the held-out data of the fit (50 % if alike); "
        f"{percent(beyond)} of the inputs are beyond its 95 % quantile"
    )


def describe_noise(noise: object) -> str:
    """A noise in words; one of several inputs with their names."""
    if noise is None:
        return "none"
    if isinstance(noise, dict):
        return "; ".join(f"{name}: {describe_noise(item)}" for name, item in noise.items())
    if isinstance(noise, tuple | list):
        return "; ".join(describe_noise(item) for item in noise)
    variance = noise.var if isinstance(noise, Constant) else noise
    if isinstance(variance, Tensor) and variance.numel() == 1:
        variance = float(variance)
    if isinstance(variance, int | float):
        return f"std {float(variance) ** 0.5:.4g} (variance {float(variance):.4g})"
    kind = getattr(noise, "kind", "") or type(noise).__name__
    return str(kind).replace("_", " ")


def settings_of(sure: Uncertain, options: Options) -> dict[str, dict[str, object]]:
    """What was asked for, as short plain data for JSON; what `fit` found is in the state's file."""
    setup = sure.setup
    return {
        "uncertain": {
            "method": sure.method,
            **{name: getattr(setup, name) for name in _SHORT},
            "noise": describe_noise(setup.noise),
        },
        "report": {
            "title": options.title,
            "names": tuple(map(str, options.names)),
            "noise_levels": tuple(map(float, options.noise_levels)),
            "inputs": options.inputs,
            "cases": options.cases,
            "gallery": options.gallery,
        },
        "versions": dict(_VERSIONS),
    }


def state_of(sure: Uncertain) -> dict[str, Any] | None:
    """What `Uncertain.save` would write; `None` if a setting is a function, which no file holds."""
    try:
        return sure.get_extra_state()
    except (TypeError, ValueError):
        return None


def decoded(value: object) -> Any:
    """The settings of a report with their tensors, which stand in it as lists.

    Examples:
        >>> hs.report.decoded(hs.noise.encode({"var": torch.ones(2)}))
        {'var': tensor([1., 1.])}
    """
    if isinstance(value, dict):
        if set(value) == {"tensor", "dtype"}:
            return decode_tensor(value)
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value


def code_of(settings: dict[str, Any], *, has_state: bool) -> str:
    """Python that repeats the report; it needs the model and the data, which only users have."""
    sure = f'sure = howsure.Uncertain.load("{STATE_FILE}", model)  # the file beside this page'
    if not has_state:
        sure = """\
# The noise or the output is a function of your own: fill in `sure`.
sure = howsure.Uncertain(model, noise=..., method=..., rate=...)"""
    options = ", ".join(f"{name}={value!r}" for name, value in settings["report"].items())
    return f"""\
# `model` is the trained network, `loader` gives batches (inputs, targets).
import howsure
from howsure import report

{sure}
options = report.Options({options})
report.write("report.html", report.build(sure, loader, options=options))"""
