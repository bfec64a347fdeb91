"""Noises of one or several inputs: from what the user wrote to variances, draws and plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from howsure.noise.base import Noise, NoiseEstimate, Root, as_value, decode_tensor, encode
from howsure.noise.sensors import Constant, Custom, GrayLevels
from howsure.trees import floats_of

# What users may give: for one tensor a number or a tensor (a **variance**), a noise, what was
# identified from readings, a function of the tensor that returns its variance, or none; for several
# inputs the structure of the inputs.
NoiseLike: TypeAlias = (
    float
    | Tensor
    | Noise
    | NoiseEstimate
    | Callable[[Tensor], object]
    | Mapping[str, "NoiseLike"]
    | Sequence["NoiseLike"]
    | None
)


def as_noise(noise: object) -> Noise | None:
    """The noise of one tensor: a number or a tensor is a variance, a function returns one.

    Examples:
        >>> hs.noise.as_noise(0.01)
        Constant(var=0.01)
    """
    if noise is None or isinstance(noise, Noise):
        return noise
    if isinstance(noise, NoiseEstimate):
        return noise.estimate
    if callable(noise):
        return Custom(noise)
    if isinstance(noise, Mapping | Sequence | str):
        raise TypeError(
            f"The noise of one tensor is a {type(noise).__name__}; give a number or a tensor (a "
            "variance), a noise of `howsure.noise`, a function of the tensor, or None. Several "
            "numbers go into a tensor, or into `howsure.noise.per_channel`."
        )
    return Constant(noise if isinstance(noise, Tensor) else as_value(noise, "noise"))


def map_noises(
    function: Callable[[Noise | None, Any, str], object], noise: object, x: object, name: str = ""
) -> Any:
    """The structure of `x` with `function(noise, leaf, name)` in place of every leaf.

    The noise has the structure of `x`; a dict may leave out inputs, and `None` is no noise for all
    that is inside. `x` may be the noise itself. Names are those of a budget: `image` for
    `x["image"]`, `imu.gyro` for a dict inside, `x[0]`.
    """
    if isinstance(x, Tensor) and not isinstance(noise, Mapping):
        return function(as_noise(noise), x, name or "x")
    record: Any = x
    is_record = dataclasses.is_dataclass(x) and not isinstance(x, type)
    if is_record and isinstance(noise, Mapping | None):
        names = [field.name for field in dataclasses.fields(record) if field.init]
        parts = {part: getattr(record, part) for part in names}
        return dataclasses.replace(record, **map_noises(function, noise or {}, parts, name))
    if isinstance(x, Mapping) and isinstance(noise, Mapping | None):
        noises = noise or {}
        if unknown := [key for key in noises if key not in x]:
            raise ValueError(
                f"The noise names {unknown[0]!r}, which is not among the inputs {list(x)} of "
                f"`{name or 'x'}`."
            )
        return {
            key: map_noises(function, noises.get(key), part, _join(name, key))
            for key, part in x.items()
        }
    if _is_sequence(x) and (noise is None or _is_sequence(noise)):
        noises = [None] * len(x) if noise is None else noise
        if len(noises) != len(x):
            raise ValueError(
                f"`{name or 'x'}` has {len(x)} parts and its noise has {len(noises)}; give one "
                "noise, or None, for each."
            )
        parts = [map_noises(function, noises[i], part, _join(name, i)) for i, part in enumerate(x)]
        constructor: Any = type(x)
        return constructor(*parts) if hasattr(x, "_fields") else constructor(parts)
    if noise is None or x is noise:
        return function(as_noise(noise), x, name or "x")
    raise TypeError(
        "The noise must have the structure of the input, with one noise (or None) for each "
        f"tensor; `{name or 'x'}` is a {type(x).__name__} and its noise a {type(noise).__name__}."
    )


def _join(name: str, key: object) -> str:
    """The name of a part of the input of this name; the input itself has none."""
    if isinstance(key, str):
        return f"{name}.{key}" if name else key
    return f"{name or 'x'}[{key!r}]"


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _leaves(noise: object, x: object) -> list[tuple[Noise | None, Any, str]]:
    """The noise, the part of `x` and the name of every leaf."""
    leaves: list[tuple[Noise | None, Any, str]] = []
    map_noises(lambda *leaf: leaves.append(leaf), noise, x)
    return leaves


def variance_of(noise: object, x: object, batch_dim: int | None = 0) -> Any:
    """The variance of every tensor of `x`, in the structure that `howsure.propagate` takes.

    Args:
        noise: For a tensor a number or a tensor (a **variance**), a noise, a function of the tensor
            that returns its variance, or `None` (no noise). For several inputs the structure of `x`
            with one of these for each tensor; a dict may leave out the inputs without noise, and
            is by field for a dataclass.
        x: The model's input: a tensor, or tuples, lists and dicts of tensors.
        batch_dim: Batch dimension; `None` if all of `x` is one input.

    Examples:
        >>> readings = {"image": torch.zeros(1, 2), "speed": torch.zeros(1, 1)}
        >>> noise = {"image": 0.01, "speed": hs.noise.std(0.5)}
        >>> hs.noise.variance_of(noise, readings)
        {'image': tensor(0.0100), 'speed': tensor(0.2500)}
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

    Examples:
        >>> x, generator = torch.zeros(2, 3), torch.Generator().manual_seed(0)
        >>> hs.noise.sample_of(hs.noise.std(0.1), x, generator).shape
        torch.Size([2, 3])
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

    Names are as in `map_noises`. With `whole`, the batch is one input, though its parts still have
    independent noise.

    Examples:
        >>> [(number, name, root)] = hs.noise.roots_of(0.25, torch.zeros(3, 2))
        >>> root.std, root.is_diagonal
        (0.5, True)
    """
    roots: list[tuple[int, str, Root]] = []
    number = -1
    for part, tensor, name in _leaves(noise, x):
        number += isinstance(tensor, Tensor) and tensor.dtype.is_floating_point
        if part is None:
            continue
        tensor = tensor.detach()
        if not whole or batch_dim is None:
            root = part.root(tensor, batch_dim)
        elif part.is_correlated:
            joined = part.root(tensor, batch_dim)
            root = joined.joint(tensor.shape[batch_dim], batch_dim % tensor.dim())
        else:
            root = part.root(tensor, None)
        roots.append((number, name, root))
    return roots


def dimensions_of(noise: object, x: object, batch_dim: int | None = 0) -> float:
    """The effective number of independent directions of the noise; see `Root.dimensions`.

    At the first input, since noise may depend on the signal; infinite without any noise.

    Examples:
        >>> flicker, white = hs.noise.common_mode(0.1), hs.noise.std(0.1)
        >>> x = torch.zeros(4, 1, 8, 8)
        >>> one, many = (hs.noise.dimensions_of(noise, x) for noise in (flicker, white))
        >>> round(one), many > 50
        (1, True)
    """
    dimensions = [
        part.root(tensor.detach(), batch_dim).dimensions(tensor.detach())
        for part, tensor, _ in _leaves(noise, x)
        if part is not None and tensor.numel()
    ]
    return sum(dimensions) if dimensions else math.inf


def is_correlated(noise: object) -> bool:
    """Whether elements of any input vary together; `noise` as in `variance_of`.

    Examples:
        >>> hs.noise.is_correlated(hs.noise.rows(0.1)), hs.noise.is_correlated(0.01)
        (True, False)
    """
    if isinstance(noise, Tensor):  # sooner than as a value
        return False
    return any(part is not None and part.is_correlated for part, *_ in _leaves(noise, noise))


def is_number(noise: object) -> bool:
    """Whether a noise is none or one number, which neither depends on an input nor ever changes.

    Examples:
        >>> lidar = hs.noise.range_dependent(0.01, 0.02)
        >>> hs.noise.is_number(0.01), hs.noise.is_number(lidar)
        (True, False)
    """
    return noise is None or number_of(noise) is not None


def number_of(noise: object) -> float | None:
    """The variance of a noise that is one number.

    Examples:
        >>> hs.noise.number_of(0.25)
        0.25
    """
    if isinstance(noise, int | float) and not isinstance(noise, bool):
        return float(noise)
    return noise.uniform_var if isinstance(noise, Noise) else None


def scaled(noise: object, factor: float) -> NoiseLike:
    """`noise` in its own structure with `factor` times the variances.

    Examples:
        >>> hs.noise.scaled(0.01, 4.0)
        Scaled(noise=Constant(var=0.01), factor=4)
    """
    return map_noises(
        lambda noise, *_: None if noise is None else noise.scaled(factor), noise, noise
    )


def described(noise: NoiseLike) -> str:
    """A noise of one or several inputs in a few words, never tensors in full.

    Examples:
        >>> hs.noise.described(hs.noise.std(0.1))
        'Constant(var=0.01)'
    """
    if isinstance(noise, Mapping):
        return "{" + ", ".join(f"{key}: {described(part)}" for key, part in noise.items()) + "}"
    if _is_sequence(noise):
        return "(" + ", ".join(map(described, noise)) + ")"
    return str(as_noise(noise))


def note_units(noise: object, x: object) -> tuple[str, ...]:
    """A note where pixels contradict the range that their noise was stated for.

    Examples:
        >>> pixels = torch.full((1, 1, 2, 2), 200.0)
        >>> len(hs.noise.note_units(hs.noise.gray_levels(2), pixels))
        1
    """
    if isinstance(noise, GrayLevels):
        notes = [noise.describe_contradiction(pixels) for pixels in floats_of(x)[:1]]
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

    Examples:
        >>> hs.noise.to_config(hs.noise.std(0.5))
        {'kind': 'constant', 'var': 0.25}
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
    """What `to_config` was given; a list comes back as a tuple.

    Examples:
        >>> hs.noise.from_config({"kind": "constant", "var": 0.04})
        Constant(var=0.04)
    """
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
    for name, noises in (("noise", (fields.get("noise"),)), ("noises", fields.get("noises"))):
        if name in fields and not (noises and all(isinstance(one, Noise) for one in noises)):
            raise ValueError(f"The config of the noise {cls.kind!r} has no noise as its `{name}`.")
    try:
        return cls(**fields)
    except TypeError as error:
        raise ValueError(
            f"The config of the noise {cls.kind!r} has the fields {list(fields)}, which do not fit "
            f"({error}); it must be what `to_config` returned."
        ) from None
