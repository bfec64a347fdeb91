"""The settings of a `Setup` as plain data, field by field: what `Uncertain.save` writes.

Every field is saved, or refused with the remedy. A field that is new is saved, too, if its value is
plain: none can be forgotten.
"""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from howsure import noise as noises
from howsure.files import check_archive
from howsure.gaussian_output import Gaussian
from howsure.methods.method import METHODS, Method
from howsure.multipliers.sites import Placement
from howsure.posterior.temperature import TemperatureModel
from howsure.posterior.variance_model import VarianceModel
from howsure.setup import Setup

# What a field holds that is no plain value, as a dict with one of these names.
_TUPLE, _DTYPE, _PLACEMENT, _GAUSSIAN = "tuple", "dtype", "placement", "gaussian"
_MODELS = {"variance_model": VarianceModel, "temperature_model": TemperatureModel}
_NOT_NEGATIVE = ("residual_var", "weights", "squared_error", "spread")
_DTYPES = {"bfloat16": torch.bfloat16}
_DAMAGED, _REMEDY = "The settings were damaged", "Run `fit` again, and save."


def names_of_settings() -> list[str]:
    """The fields that are settings: not the model, and no caches."""
    return [f.name for f in fields(Setup) if f.name != "model" and not f.name.startswith("_")]


def saved_method(method: Method | None) -> str:
    """The method's name, or "auto"; an error for one that only this program knows."""
    if method is None:
        return "auto"
    listed = METHODS.get(method.name)
    if listed is None or listed.predict is not method.predict:
        raise TypeError(
            f'The method "{method}" is your own and cannot be saved, because a file cannot hold '
            'its code; save with `sure.method = "auto"`, and set it again after loading.'
        )
    return method.name


def saved_settings(setup: Setup) -> dict[str, Any]:
    """All settings as numbers, text, tensors, lists and dicts; an error for what is none of it."""
    named = {name: getattr(setup, name) for name in names_of_settings()}
    return {
        name: noises.to_config(value) if name == "noise" else _encode(name, value)
        for name, value in named.items()
    }


def _encode(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(name, item) for item in value]}
    if isinstance(value, Placement):
        return {_PLACEMENT: {key: _encode(name, item) for key, item in asdict(value).items()}}
    if isinstance(value, Gaussian):
        return {_GAUSSIAN: {key: _encode(name, item) for key, item in vars(value).items()}}
    if isinstance(value, VarianceModel | TemperatureModel):
        return {name: _to_state(value)}
    if value in _DTYPES.values():
        return {_DTYPE: str(value).removeprefix("torch.")}
    raise TypeError(
        f"`{name}={value!r}` cannot be saved, because a {type(value).__name__} is not plain data; "
        f"leave it out, and give it again after loading: `sure.setup = "
        f"sure.setup.replace({name}=...)`."
    )


def _to_state(value: Any) -> Any:
    """What `fit` found: a dataclass as a dict of its fields, a tuple as a list."""
    if is_dataclass(value):
        return {field.name: _to_state(getattr(value, field.name)) for field in fields(value)}
    return [_to_state(item) for item in value] if isinstance(value, tuple) else value


def _from_state(kind: Any, state: Any) -> Any:
    """The inverse, for a field of that type; an error for the fields of another version."""
    arguments = get_args(kind)  # of a union or a tuple, whose first one says what is in it
    if isinstance(state, list) and arguments:
        return tuple(_from_state(arguments[0], item) for item in state)
    if not isinstance(state, dict):
        return state
    kind = next((one for one in (kind, *arguments) if is_dataclass(one)), None)
    hints = get_type_hints(kind)
    if set(state) != set(hints):
        raise ValueError(
            "These settings were fitted by another version of howsure; run `fit` again."
        )
    return kind(**{name: _from_state(hints[name], item) for name, item in state.items()})


def loaded_settings(state: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Setup` from what `saved_settings` gave; an error for other fields."""
    expected = set(names_of_settings())
    if not isinstance(state, dict) or set(state) != expected:
        given = set(state) if isinstance(state, dict) else set()
        raise ValueError(
            f"Incompatible settings: missing keys {sorted(expected - given)}, unexpected keys "
            f"{sorted(map(str, given - expected))}; they may be those of another version of "
            "howsure. Run `fit` again, and save."
        )
    try:
        settings = {
            name: noises.from_config(value) if name == "noise" else _decode(value)
            for name, value in state.items()
        }
        noises.described(settings["noise"])
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{_DAMAGED} ({reason}). {_REMEDY}") from None
    for name, kind in {**_MODELS, "fitted_to": tuple[str, Tensor]}.items():
        if settings[name] is not None and not _has_type(settings[name], kind):
            raise ValueError(f"{_DAMAGED}: `{name}` is not what `fit` finds. {_REMEDY}")
    return settings


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value, and all that it consists of, is what the annotation says."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return isinstance(value, kind) and all(
            _has_type(getattr(value, name), hint) for name, hint in hints.items()
        )
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        several = isinstance(value, tuple) and arguments[1:] == (...,)
        kinds = arguments[:1] * len(value) if several else arguments
        return (
            isinstance(value, tuple)
            and len(value) == len(kinds)
            and all(map(_has_type, value, kinds))
        )
    if arguments:  # of a union
        return any(_has_type(value, one) for one in arguments)
    return isinstance(value, (float, int) if kind is float else kind)


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(_decode(item) for item in value[_TUPLE])
    for name, kind in _MODELS.items():
        if name in value:
            _check_numbers(name, value[name])
            return _from_state(kind, value[name])
    if _GAUSSIAN in value:
        return Gaussian(**value[_GAUSSIAN])
    if _DTYPE in value:
        return _DTYPES[value[_DTYPE]]
    if not isinstance(value.get(_PLACEMENT), dict):
        raise ValueError(f"{_DAMAGED}. {_REMEDY}")
    return Placement(**{key: _decode(item) for key, item in value[_PLACEMENT].items()})


def _check_numbers(name: str, value: Any) -> None:
    """An error for numbers that no fit finds: NaN anywhere, or a variance below 0."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_numbers(name, item)
    elif isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        numbers = torch.as_tensor(value)
        is_variance = name.rpartition(".")[2] in _NOT_NEGATIVE
        if bool(numbers.isnan().any()) or (is_variance and bool((numbers < 0).any())):
            raise ValueError(
                f"{_DAMAGED}: `{name}` has numbers that are NaN, or negative where there is a "
                f"variance. {_REMEDY}"
            )


def read_state(path: Path) -> dict[str, Any]:
    """What a file of `Uncertain.save` holds; nothing in it is executed."""
    check_archive(path)
    try:
        # What was fitted on a GPU is read where there is none.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"`{path}` is not a file that `Uncertain.save` wrote.") from error
    if not isinstance(state, dict) or "format" not in state:
        raise ValueError(f"`{path}` is not a file that `Uncertain.save` wrote.")
    return state
