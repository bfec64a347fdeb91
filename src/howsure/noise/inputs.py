"""Noises of one or several inputs: from what the user wrote to variances, draws and plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.constant import Constant
from howsure.noise.identified import CameraFit, Identified
from howsure.noise.signal import Custom
from howsure.noise.values import Root, as_value, decode_tensor, encode

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


def described(noise: NoiseLike) -> str:
    """A noise of one or several inputs in a few words, never tensors in full."""
    if isinstance(noise, Mapping):
        return "{" + ", ".join(f"{key}: {described(item)}" for key, item in noise.items()) + "}"
    if _is_sequence(noise):
        return "(" + ", ".join(map(described, noise)) + ")"
    return str(as_noise(noise))


def variance_of(noise: object, x: object, batch_dim: int | None = 0) -> Any:
    """The variance of every tensor of `x`, in the structure that `howsure.propagate` takes.

    Args:
        noise: For a tensor a number or a tensor (a **variance**), a noise, a function of the tensor
            that returns its variance, or `None` (no noise). For several inputs the structure of `x`
            with one of these for each tensor; a dict may leave out the inputs without noise.
        x: The model's input: a tensor, or tuples, lists and dicts of tensors.
        batch_dim: The axis that counts the inputs; `None` if all of `x` is one.
    """
    if is_correlated(noise):
        if batch_dim not in (0, None):
            raise ValueError(
                "The variance of each element of correlated noise is known for `batch_dim=0` "
                f'only, not {batch_dim}; use the method "gradients".'
            )
        roots_of(noise, x, batch_dim)  # an error if it does not fit the input
    return _walk(noise, x, lambda found, tensor, _: None if found is None else found(tensor), "x")


def roots_of(
    noise: object, x: object, batch_dim: int | None = 0, *, whole: bool = False
) -> list[tuple[int, str, Root]]:
    """Number, name and square root of the noise of every noisy floating-point tensor of `x`.

    Names are those of a budget: `image` for `x["image"]`, `imu.gyro` for a dict inside, `x[0]`.
    With `whole`, all rows are one input, though each still has noise of its own.
    """
    found: list[tuple[int, str, Root]] = []
    number = -1

    def leaf(own: Noise | None, item: Any, name: str) -> None:
        nonlocal number
        number += isinstance(item, Tensor) and item.dtype.is_floating_point
        if own is not None:
            found.append((number, _by_keys(name), _root(own, item.detach(), batch_dim, whole)))

    _walk(noise, x, leaf, "x")
    return found


def dimensions_of(noise: object, x: object, batch_dim: int | None = 0) -> float:
    """How many independent directions of equal size the noise is worth; see `Root.dimensions`.

    At the first row, since noise may depend on the signal; infinite without any noise.
    """
    found: list[float] = []

    def leaf(own: Noise | None, item: Any, _: str) -> None:
        if own is not None and item.numel():
            first = item.detach()
            found.append(own.root(first, batch_dim).dimensions(first))

    _walk(noise, x, leaf, "x")
    return sum(found) if found else math.inf


def _root(noise: Noise, x: Tensor, batch_dim: int | None, whole: bool) -> Root:
    if not whole or batch_dim is None:
        return noise.root(x, batch_dim)
    if not noise.is_correlated:
        return noise.root(x, None)
    return noise.root(x, batch_dim).of_whole(x.shape[batch_dim], batch_dim % x.dim())


def _by_keys(name: str) -> str:
    """The path of an item with its keys as words."""
    return re.sub(r"\['([^']*)'\]", r".\1", name).removeprefix("x.")


def sample_of(
    noise: object,
    x: object,
    generator: torch.Generator | None,
    *,
    batch_dim: int | None = 0,
) -> Any:
    """`x` with noise drawn onto every tensor that has a noise; `noise` as in `variance_of`.

    Inputs along `batch_dim` have noises that are independent of each other.
    """

    def leaf(found: Noise | None, item: Any, _: str) -> object:
        if found is None:
            return item
        # A class of the user's own may draw in its own way, which knows no batch.
        if not found.is_correlated:
            return found.sample(item, generator)
        return found.sample(item, generator, batch_dim=batch_dim)

    return _walk(noise, x, leaf, "x")


def is_correlated(noise: object) -> bool:
    """Whether elements of any input vary together; `noise` as in `variance_of`."""
    if isinstance(noise, Mapping):
        return any(map(is_correlated, noise.values()))
    if _is_sequence(noise):
        return any(map(is_correlated, noise))
    found = as_noise(noise)
    return found is not None and found.is_correlated


def is_number(noise: object) -> bool:
    """Whether a noise is none or one number, which neither depends on an input nor ever changes."""
    return noise is None or number_of(noise) is not None


def number_of(noise: object) -> float | None:
    """The variance of a noise that is one number."""
    if isinstance(noise, int | float) and not isinstance(noise, bool):
        return float(noise)
    return noise.var if type(noise) is Constant and isinstance(noise.var, float) else None


def scaled(noise: object, factor: float) -> NoiseLike:
    """`noise` in its own structure with `factor` times the variances."""
    if isinstance(noise, Mapping):
        return {key: scaled(item, factor) for key, item in noise.items()}
    if _is_sequence(noise):
        return tuple(scaled(item, factor) for item in noise)
    found = as_noise(noise)
    return None if found is None else found.scaled(factor)


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


def _walk(
    noise: object, x: object, leaf: Callable[[Noise | None, Any, str], object], name: str
) -> object:
    """`x` with `leaf(noise, item, name)` for each of its items."""
    if isinstance(x, Mapping) and isinstance(noise, Mapping | None):
        return _walk_mapping(noise or {}, x, leaf, name)
    if _is_sequence(x) and (noise is None or _is_sequence(noise)):
        return _walk_sequence(noise, x, leaf, name)
    if noise is None or (isinstance(x, Tensor) and not isinstance(noise, Mapping)):
        return leaf(as_noise(noise), x, name)
    raise TypeError(
        "The noise must have the structure of the input, with one noise (or None) for each "
        f"tensor; `{name}` is a {type(x).__name__} and its noise a {type(noise).__name__}."
    )


def _walk_mapping(
    noise: Mapping[object, object],
    x: Mapping[object, object],
    leaf: Callable[..., object],
    name: str,
) -> dict[object, object]:
    unknown = [key for key in noise if key not in x]
    if unknown:
        raise ValueError(
            f"The noise names {unknown[0]!r}, which is not among the inputs {list(x)} of `{name}`."
        )
    return {key: _walk(noise.get(key), item, leaf, f"{name}[{key!r}]") for key, item in x.items()}


def _walk_sequence(
    noise: Sequence[object] | None, x: Sequence[object], leaf: Callable[..., object], name: str
) -> object:
    noises = [None] * len(x) if noise is None else noise
    if len(noises) != len(x):
        raise ValueError(
            f"`{name}` has {len(x)} parts and its noise has {len(noises)}; give one noise, or "
            "None, for each."
        )
    pairs = enumerate(zip(noises, x, strict=True))
    items = [_walk(found, item, leaf, f"{name}[{i}]") for i, (found, item) in pairs]
    constructor: Any = type(x)
    return constructor(*items) if hasattr(x, "_fields") else constructor(items)


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


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
