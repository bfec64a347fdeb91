"""What was run, and what it takes to run it again: facts, plain data, and code."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import howsure
from howsure.methods.temperature import TemperatureModel
from howsure.noise import Constant, decode_tensor
from howsure.posterior.variance_model import VarianceModel, quantile_at, share_below
from howsure.prediction import Prediction
from howsure.report.options import Options
from howsure.report.readings import percent
from howsure.trees import TensorTree
from howsure.uncertain import Uncertain

# Settings that fit on a line.
_SHORT = ("task", "samples", "tolerance", "prediction", "seed", "batch_dim", "chunk", "fallback")
# Where the state is, beside the page; `write` puts the page's own name in its place.
STATE_FILE = "report.fit.pt"


def versions() -> dict[str, str]:
    """The versions on which numbers may depend."""
    return {
        "howsure": howsure.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def facts(sure: Uncertain, found: Prediction, inputs: int) -> tuple[tuple[str, str], ...]:
    """What was run, for people; `found` is the prediction at the sensor's own noise."""
    setup = sure.setup
    method = found.method or sure.method
    network = type(sure.model).__name__
    rows = [
        ("Network", f"{network}, {_parameters(sure.model):,} parameters"),
        ("Task", setup.task),
        ("Method", f"{method} (chosen by auto)" if sure.method == "auto" else method),
        ("Sensor noise", describe_noise(setup.noise)),
        ("Dropout rate", _rate(setup.rate)),
        ("Points or samples", "" if setup.samples is None else str(setup.samples)),
        ("Tolerance", "" if setup.tolerance is None else f"{setup.tolerance:g}"),
        ("Standard error of a std", _own_error(found)),
        ("First-order share", _first_order(found)),
        ("Residual variance", _residual_var(setup.residual_var)),
        ("Novelty", _novelty(found, setup.variance_model or setup.temperature_model)),
        ("Data", f"{inputs:,} inputs with targets"),
        ("Seed", str(setup.seed)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions().items())),
    ]
    return tuple((name, text) for name, text in rows if text)


def _novelty(found: Prediction, model: VarianceModel | TemperatureModel | None) -> str:
    """How unlike the held-out inputs of `fit` these are."""
    quantiles = None if model is None else model.novelty_quantiles
    if found.joint_novelty is None or quantiles is None:
        return ""
    auroc = float(share_below(quantiles, found.joint_novelty).mean())
    beyond = float((found.joint_novelty > quantile_at(quantiles, 0.95)).double().mean())
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


def settings_of(sure: Uncertain, options: Options) -> dict[str, object]:
    """What was asked for, as short plain data for JSON; what `fit` found is in the state's file."""
    setup = sure.setup
    short = {name: getattr(setup, name) for name in _SHORT}
    return {
        "uncertain": {"method": sure.method, **short, "noise": describe_noise(setup.noise)},
        "report": {
            "title": options.title,
            "names": [str(name) for name in options.names],
            "noise_levels": [float(level) for level in options.noise_levels],
            "inputs": options.inputs,
            "cases": options.cases,
            "gallery": options.gallery,
        },
        "versions": versions(),
    }


def state_of(sure: Uncertain) -> dict[str, Any] | None:
    """What `Uncertain.save` would write; `None` if a setting is a function, which no file holds."""
    try:
        return sure.get_extra_state()
    except (TypeError, ValueError):
        return None


def decoded(value: object) -> Any:
    """The settings of a report with their tensors, which stand in it as lists."""
    if isinstance(value, dict):
        if set(value) == {"tensor", "dtype"}:
            return decode_tensor(value)
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value


def code_of(settings: dict[str, Any], *, has_state: bool) -> str:
    """Python that repeats the report; it needs the model and the data, which only users have."""
    options = ", ".join(f"{k}={_literal(v)}" for k, v in settings["report"].items())
    sure = f'sure = howsure.Uncertain.load("{STATE_FILE}", model)  # the file beside this page'
    if not has_state:
        sure = (
            "# The noise or the output is a function of your own: fill in `sure`.\n"
            "sure = howsure.Uncertain(model, noise=..., method=..., rate=...)"
        )
    return "\n".join(
        [
            "# `model` is the trained network, `loader` gives batches (inputs, targets).",
            "import howsure",
            "from howsure import report",
            "",
            sure,
            f"options = report.Options({options})",
            'report.write("report.html", report.build(sure, loader, options=options))',
        ]
    )


def _literal(value: object) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _rate(rate: float | tuple[float, ...] | None) -> str:
    if rate is None:
        return ""
    if isinstance(rate, tuple):
        return f"{len(rate)} rates from {min(rate):.3g} to {max(rate):.3g}"
    return f"{float(rate):.3g}"


def _residual_var(value: float | Tensor) -> str:
    if isinstance(value, Tensor):
        return "one per output"
    return f"{float(value):.3g}" if value else ""


def _own_error(found: Prediction) -> str:
    """How far more points or samples would move the std, by the method's own account."""
    errors, stds = TensorTree(found.std_error).tensors, TensorTree(found.std).tensors
    if not errors or not bool(stds[0].any()):
        return ""
    relative = (errors[0] / stds[0])[stds[0] > 0]
    return f"{percent(float(relative.median()))} of the std (median), as the method states"


def _first_order(found: Prediction) -> str:
    """How much of the variance a linearised network would find."""
    shares = found.linear_share
    if shares is None:
        shares = None if found.logits is None else found.logits.linear_share
    if shares is None:
        return ""
    of_what = "" if found.linear_share is not None else " of the logits"
    return (
        f"{percent(float(shares.median()))} of the variance{of_what} (median); a linearised "
        "network misses the rest"
    )
