"""What settings may be, and the sentence for what they may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from howsure.trees import brief, has_values

Task = Literal["regression", "classification", "binary", "multilabel"]
PredictionKind = Literal["mean", "network"]
TASKS = get_args(Task)


def check_setting(name: str, value: object) -> None:
    """An error if a setting cannot have this value."""
    if name == "prediction" and str(value) == "adf":
        raise ValueError('`prediction="adf"` is now called "mean": E[f(x + noise)].')
    fits, words = SETTINGS[name]
    if not fits(value):
        raise ValueError(f"`{name}` must be {words}, not {brief(value)}.")


def _whole(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _variance(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not has_values(value) or bool((value >= 0).all() and value.isfinite().all())
    return _number(value) and 0 <= value < math.inf


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _rates(value: object) -> bool:
    return value is None or all(map(_number, value if isinstance(value, tuple) else (value,)))


# Whether a value is allowed, and what is.
SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda v: v in TASKS, f"one of {TASKS}"),
    "prediction": (
        lambda v: v is None or v in get_args(PredictionKind),
        f"one of {get_args(PredictionKind)}",
    ),
    "samples": (lambda v: v is None or _whole(v, 1), "a whole number of at least 1"),
    "chunk": (lambda v: v is None or _whole(v, 1), "a whole number of at least 1"),
    "seed": (_whole, "a whole number"),
    "batch_dim": (lambda v: v is None or _whole(v, 0), "an axis counted from 0, or None"),
    "tolerance": (
        lambda v: v is None or (_number(v) and 0 < v < 1),
        "the largest relative error of a std, a number between 0 and 1",
    ),
    "placement": (lambda v: hasattr(v, "kind"), "a placement of dropout"),
    "variance_model": (lambda v: not isinstance(v, (str, Real)), "what `fit` has found"),
    "shared_masks": (lambda v: isinstance(v, bool), "True or False"),
    "unbiased": (lambda v: isinstance(v, bool), "True or False"),
    "rules": (
        lambda v: v is None or (isinstance(v, Mapping) and not any(map(_number, v.values()))),
        "rules by operation, as `howsure.rule` makes them",
    ),
    "rate": (_rates, "a number, one number for each site, or None"),
    "residual_var": (_variance, "a variance, finite and at least 0"),
    "variance_dtype": (
        lambda v: v in (None, torch.bfloat16),
        "torch.bfloat16 or None, the model's precision: float16 cannot hold small variances",
    ),
}
