"""Noises as plain data, so that they can be saved with a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.inputs import as_noise
from howsure.noise.values import decode_tensor, encode


def to_config(noise: object) -> object:
    """The noise of one or several inputs as plain data for JSON; as `variance_of` takes it.

    Functions are refused, since they are not plain data.
    """
    if isinstance(noise, Mapping):
        if not all(isinstance(key, str) for key in noise):
            raise TypeError(
                f"The noise has the inputs {list(noise)}, and only names can be saved; use strings."
            )
        return {"inputs": {key: to_config(item) for key, item in noise.items()}}
    if isinstance(noise, tuple | list):
        return [to_config(item) for item in noise]
    if noise is None or isinstance(noise, int | float | Tensor):
        return encode(noise)
    return encode(as_noise(noise))


def from_config(config: object) -> Any:
    """What `to_config` was given; a list comes back as a tuple."""
    if isinstance(config, list):
        return tuple(from_config(item) for item in config)
    if not isinstance(config, dict):
        return config
    if "tensor" in config:
        return decode_tensor(config)
    if "inputs" in config:
        return {key: from_config(item) for key, item in config["inputs"].items()}
    return _noise(config)


def _noise(config: dict[str, object]) -> Noise:
    kind = Noise.of_kind(config.get("kind"))
    fields = {name: from_config(value) for name, value in config.items() if name != "kind"}
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(
            f"The config of the noise {kind.kind!r} has the fields {list(fields)}, which do not "
            f"fit ({error}); it must be what `to_config` returned."
        ) from None
