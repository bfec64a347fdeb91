"""Noises of one or several inputs: from what the user wrote to variances, draws and plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from howsure.noise.base import Noise, Root, as_value, decode_tensor, encode
from howsure.noise.identify import CameraFit, Identified
from howsure.noise.sensors import Constant, Custom, GrayLevels
from howsure.trees import floats_of

# What users may give: for one tensor a number or a tensor (a **variance**), a noise, what was
# identified from readings, a function of the tensor that returns its variance, or none; for several
# inputs the structure of the inputs.
NoiseLike: TypeAlias = (
    float
    | Tensor
    | Noise
    | Identified
    | CameraFit
    | Callable[[Tensor], object]
    | Mapping[str, "NoiseLike"]
    | Sequence["NoiseLike"]
    | None
)
# Stands for an input of the same structure as its noise.
_ANY = object()


def as_noise(noise: object) -> Noise | None:
    """The noise of one tensor: a number or a tensor is a variance, a function returns one."""
    if noise is None or isinstance(noise, Noise):
        return noise
    if isinstance(noise, Identified):
        return noise.correlated
    if isinstance(noise, CameraFit):
        return noise.noise
    if callable(noise):
        return Custom(noise)
    if isinstance(noise, Mapping | Sequence | str):
        raise TypeError(
            f"The noise of one tensor is a {type(noise).__name__}; give a number or a tensor (a "
            "variance), a noise of `howsure.noise`, a function of the tensor, or None. Several "
            "numbers go into a tensor, or into `howsure.noise.per_channel`."
        )
    return Constant(as_value(noise, "noise"))


def map_noises(
    function: Callable[[Noise | None, Any, str], object],
    noise: object,
    x: object = _ANY,
    name: str = "x",
) -> Any:
    """The structure of `x` with `function(noise, leaf, name)` in place of every leaf.

    The noise has the structure of `x`; a dict may leave out inputs, and `None` is no noise for all
    that is inside. Without `x` this maps over the noises alone.
    """
    if x is _ANY and isinstance(noise, Mapping):
        x = dict.fromkeys(noise, _ANY)
    elif x is _ANY and _is_sequence(noise):
        x = (_ANY,) * len(noise)
    if isinstance(x, Mapping) and isinstance(noise, Mapping | None):
        noises = noise or {}
        unknown = [key for key in noises if key not in x]
        if unknown:
            raise ValueError(
                f"The noise names {unknown[0]!r}, which is not among the inputs {list(x)} of "
                f"`{name}`."
            )
        return {
            key: map_noises(function, noises.get(key), part, f"{name}[{key!r}]")
            for key, part in x.items()
        }
    if _is_sequence(x) and (noise is None or _is_sequence(noise)):
        noises = [None] * len(x) if noise is None else noise
        if len(noises) != len(x):
            raise ValueError(
                f"`{name}` has {len(x)} parts and its noise has {len(noises)}; give one noise, or "
                "None, for each."
            )
        parts = [map_noises(function, noises[i], part, f"{name}[{i}]") for i, part in enumerate(x)]
        constructor: Any = type(x)
        return constructor(*parts) if hasattr(x, "_fields") else constructor(parts)
    if noise is None or x is _ANY or (isinstance(x, Tensor) and not isinstance(noise, Mapping)):
        return function(as_noise(noise), x, name)
    raise TypeError(
        "The noise must have the structure of the input, with one noise (or None) for each "
        f"tensor; `{name}` is a {type(x).__name__} and its noise a {type(noise).__name__}."
    )


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def variance_of(noise: object, x: object, batch_dim: int | None = 0) -> Any:
    """The variance of every tensor of `x`, in the structure that `howsure.propagate` takes.

    Args:
        noise: For a tensor a number or a tensor (a **variance**), a noise, a function of the tensor
            that returns its variance, or `None` (no noise). For several inputs the structure of `x`
            with one of these for each tensor; a dict may leave out the inputs without noise.
        x: The model's input: a tensor, or tuples, lists and dicts of tensors.
        batch_dim: Batch dimension; `None` if all of `x` is one input.
    """
    if is_correlated(noise):
        if batch_dim not in (0, None):
            raise ValueError(
                "The variance of each element of correlated noise is known for `batch_dim=0` "
                f'only, not {batch_dim}; use the method "gradients".'
            )
        roots_of(noise, x, batch_dim)  # an error if it does not fit the input
    return map_noises(lambda noise, x, _: None if noise is None else noise(x), noise, x)


def sample_of(
    noise: object,
    x: object,
    generator: torch.Generator | None,
    *,
    batch_dim: int | None = 0,
) -> Any:
    """`x` with noise drawn onto every tensor that has a noise; `noise` as in `variance_of`.

    The noise is independent between inputs along `batch_dim`.
    """

    def draw(noise: Noise | None, x: Any, _: str) -> object:
        if noise is None:
            return x
        # A class of the user's may override `sample` without a `batch_dim`.
        if not noise.is_correlated:
            return noise.sample(x, generator)
        return noise.sample(x, generator, batch_dim=batch_dim)

    return map_noises(draw, noise, x)


def roots_of(
    noise: object, x: object, batch_dim: int | None = 0, *, whole: bool = False
) -> list[tuple[int, str, Root]]:
    """Number, name and square root of the noise of every noisy floating-point tensor of `x`.

    Names are those of a budget: `image` for `x["image"]`, `imu.gyro` for a dict inside, `x[0]`.
    With `whole`, the batch is one input, though its parts still have independent noise.
    """
    roots: list[tuple[int, str, Root]] = []
    number = -1

    def collect(noise: Noise | None, x: Any, name: str) -> None:
        nonlocal number
        number += isinstance(x, Tensor) and x.dtype.is_floating_point
        if noise is None:
            return
        x = x.detach()
        joint = whole and batch_dim is not None
        root = noise.root(x, None if joint and not noise.is_correlated else batch_dim)
        if joint and noise.is_correlated:
            root = root.joint(x.shape[batch_dim], batch_dim % x.dim())
        roots.append((number, re.sub(r"\['([^']*)'\]", r".\1", name).removeprefix("x."), root))

    map_noises(collect, noise, x)
    return roots


def dimensions_of(noise: object, x: object, batch_dim: int | None = 0) -> float:
    """The effective number of independent directions of the noise; see `Root.dimensions`.

    At the first input, since noise may depend on the signal; infinite without any noise.
    """
    dimensions: list[float] = []

    def collect(noise: Noise | None, x: Any, _: str) -> None:
        if noise is not None and x.numel():
            dimensions.append(noise.root(x.detach(), batch_dim).dimensions(x.detach()))

    map_noises(collect, noise, x)
    return sum(dimensions) if dimensions else math.inf


def is_correlated(noise: object) -> bool:
    """Whether elements of any input vary together; `noise` as in `variance_of`."""
    flags: list[bool] = []
    map_noises(lambda noise, *_: flags.append(noise is not None and noise.is_correlated), noise)
    return any(flags)


def is_number(noise: object) -> bool:
    """Whether a noise is none or one number, which neither depends on an input nor ever changes."""
    return noise is None or number_of(noise) is not None


def number_of(noise: object) -> float | None:
    """The variance of a noise that is one number."""
    if isinstance(noise, int | float) and not isinstance(noise, bool):
        return float(noise)
    return noise.uniform_var if isinstance(noise, Noise) else None


def scaled(noise: object, factor: float) -> NoiseLike:
    """`noise` in its own structure with `factor` times the variances."""
    return map_noises(lambda noise, *_: None if noise is None else noise.scaled(factor), noise)


def described(noise: NoiseLike) -> str:
    """A noise of one or several inputs in a few words, never tensors in full."""
    if isinstance(noise, Mapping):
        return "{" + ", ".join(f"{key}: {described(part)}" for key, part in noise.items()) + "}"
    if _is_sequence(noise):
        return "(" + ", ".join(map(described, noise)) + ")"
    return str(as_noise(noise))


def note_units(noise: object, x: object) -> tuple[str, ...]:
    """A note where pixels contradict the range that their noise was stated for."""
    if isinstance(noise, GrayLevels):
        notes = [noise.describe_contradiction(t) for t in floats_of(x)[:1]]
        return tuple(note for note in notes if note)
    if isinstance(noise, Mapping) and isinstance(x, Mapping):
        pairs = [(part, x[key]) for key, part in noise.items() if key in x]
    elif isinstance(noise, tuple | list) and isinstance(x, tuple | list):
        pairs = list(zip(noise, x, strict=False))
    else:
        return ()
    return tuple(note for part, value in pairs for note in note_units(part, value))


def to_config(noise: object) -> object:
    """The noise of one or several inputs as plain data for JSON; as `variance_of` takes it.

    Functions are refused, since they are not plain data.
    """
    if isinstance(noise, Mapping):
        if not all(isinstance(key, str) for key in noise):
            raise TypeError(
                f"The noise has the inputs {list(noise)}, and only names can be saved; use strings."
            )
        return {"inputs": {key: to_config(part) for key, part in noise.items()}}
    if isinstance(noise, tuple | list):
        return [to_config(part) for part in noise]
    is_plain = noise is None or isinstance(noise, int | float | Tensor)
    return encode(noise if is_plain else as_noise(noise))


def from_config(config: object) -> Any:
    """What `to_config` was given; a list comes back as a tuple."""
    if isinstance(config, list):
        return tuple(map(from_config, config))
    if not isinstance(config, dict):
        return config
    if "tensor" in config:
        return decode_tensor(config)
    if "inputs" in config:
        return {key: from_config(part) for key, part in config["inputs"].items()}
    cls = Noise.of_kind(config.get("kind"))
    fields = {name: from_config(value) for name, value in config.items() if name != "kind"}
    try:
        return cls(**fields)
    except TypeError as error:
        raise ValueError(
            f"The config of the noise {cls.kind!r} has the fields {list(fields)}, which do not fit "
            f"({error}); it must be what `to_config` returned."
        ) from None
