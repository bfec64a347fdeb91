"""What was run, and what it takes to run it again: facts, plain data, and code."""

from __future__ import annotations

import json
import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import howsure
from howsure.methods.temperature import TemperatureModel
from howsure.noise import Constant, decode_tensor, encode, to_config
from howsure.posterior.variance_model import VarianceModel, quantile_at, share_below
from howsure.prediction import Prediction
from howsure.report.options import Options
from howsure.report.readings import percent
from howsure.trees import TensorTree
from howsure.uncertain import Uncertain

# Settings that `Uncertain.get_extra_state` leaves out because they change the cost and not, or
# hardly, the result.
_OPTIONS = ("chunk", "fallback")
# Numbers on a line of code: at most 24 characters each, so that the lines stay below 80.
_PER_LINE = 3


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
    """Everything that a repetition needs, as plain data for JSON."""
    own = {name: encode(getattr(sure.setup, name)) for name in _OPTIONS}
    return {
        "uncertain": _plain_state(sure),
        "options": {name: value for name, value in own.items() if value is not None},
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


def _plain_state(sure: Uncertain) -> dict[str, object] | None:
    """The settings of the wrapper; `None` if one is a function, which is not plain data."""
    try:
        to_config(sure.setup.noise)
        found: Any = encode(sure.get_extra_state())
        json.dumps(found)
        return found
    except (TypeError, ValueError):
        return None


def decoded(value: object) -> Any:
    """The settings of a report with their tensors, which stand in it as lists."""
    if isinstance(value, dict):
        if set(value) == {"tensor", "dtype"}:
            return decode_tensor(value)
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value


def code_of(settings: dict[str, Any]) -> str:
    """Python that repeats the report; it needs the model and the data, which only users have."""
    options = ", ".join(f"{k}={_literal(v)}" for k, v in settings["options"].items())
    report = ", ".join(f"{k}={_literal(v)}" for k, v in settings["report"].items())
    lines = [
        "# `model` is the trained network, `loader` gives batches (inputs, targets).",
        "import howsure",
        "from howsure import report",
        "",
    ]
    if settings["uncertain"] is None:
        lines.append("# The noise or the output is a function of your own: fill in `sure`.")
        lines.append("sure = howsure.Uncertain(model, noise=..., method=..., rate=...)")
    else:
        lines.append(f"sure = howsure.Uncertain(model, {options})")
        lines += [
            "state = report.decoded(",
            *_literal_lines(settings["uncertain"], "    "),
            ")",
            "sure.set_extra_state(state)",
        ]
    lines += [
        f"options = report.Options({report})",
        'report.write("report.html", report.build(sure, loader, options=options))',
    ]
    return "\n".join(lines)


def _literal_lines(value: object, margin: str, name: str = "", end: str = "") -> list[str]:
    """Nested plain data as Python; `pprint` takes seconds for the numbers of a posterior."""
    deeper = margin + " "
    if isinstance(value, dict) and value:
        items = ((item, f"{key!r}: ") for key, item in value.items())
        inner = [line for item, key in items for line in _literal_lines(item, deeper, key, ",")]
        return [f"{margin}{name}{{", *inner, f"{margin}}}{end}"]
    if isinstance(value, list) and value:
        if all(isinstance(item, int | float) for item in value):
            inner = [deeper + line for line in _number_lines(value)]
        else:
            inner = [line for item in value for line in _literal_lines(item, deeper, end=",")]
        return [f"{margin}{name}[", *inner, f"{margin}]{end}"]
    return [f"{margin}{name}{value!r}{end}"]


def _number_lines(numbers: list[float]) -> list[str]:
    """Some numbers on every line, with a comma behind each."""
    starts = range(0, len(numbers), _PER_LINE)
    return [", ".join(map(repr, numbers[i : i + _PER_LINE])) + "," for i in starts]


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
