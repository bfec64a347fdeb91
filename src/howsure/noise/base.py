"""A sensor's noise as a value, and what can be done to any noise: scale, normalise, add."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, get_args, get_type_hints

import torch
from torch import Tensor

from howsure.arrays import brief
from howsure.noise.values import (
    Root,
    Value,
    along,
    as_field,
    as_value,
    broadcasts,
    check,
    diagonal,
    encode,
    like,
    rows_first,
    sum_of,
    wide,
)


def _check_free(kind: str, taken: type[Noise] | None, new: type[Noise]) -> None:
    """An error if another noise has this kind; a class that is defined again may take its own."""
    if taken is None or (taken.__module__, taken.__qualname__) == (
        new.__module__,
        new.__qualname__,
    ):
        return
    if taken.__qualname__ != new.__qualname__ or taken.__module__.startswith("howsure."):
        raise ValueError(
            f"The noise `{new.__name__}` has the kind {kind!r}, which is that of "
            f"`{taken.__module__}.{taken.__name__}`; give it another, since files name it."
        )


@dataclass(frozen=True, eq=False)
class Noise(ABC):
    """How much a sensor's reading varies: a variance for every element of an input.

    Calling a noise with an input gives the variance `v` of the model's input, N(x, v) (Loquercio,
    Segu & Scaramuzza 2020, Eq. 1). Elements are independent, unless the noise `is_correlated`. The
    variance is in the square of the units in which the model sees the input.
    """

    kind: ClassVar[str] = ""  # the name of the noise in a config; without one it is not saved
    _kinds: ClassVar[dict[str, type[Noise]]] = {}  # filled by the classes themselves

    def __init_subclass__(cls, **options: object) -> None:
        """Enters the class by its `kind`, and keeps the `repr` that never shows tensors in full."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Noise.__repr__
        if kind := vars(cls).get("kind"):
            _check_free(kind, Noise._kinds.get(kind), cls)
            Noise._kinds[kind] = cls

    def __repr__(self) -> str:
        """Its class and fields in one line."""
        named = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(f'{k}={brief(v)}' for k, v in named)})"

    @abstractmethod
    def var_at(self, x: Tensor) -> Tensor:
        """The variance at `x`, which is in float32 or float64; it must broadcast to `x`."""

    def __call__(self, x: Tensor) -> Tensor:
        """The variance of every element of `x`, as a tensor that broadcasts to it.

        It has the dtype of `x`; for a half-precision `x` it is float32.
        """
        var = self.var_at(wide(x))
        if not broadcasts(var, x):
            raise ValueError(
                f"A noise variance of shape {tuple(var.shape)} does not broadcast to an input of "
                f"shape {tuple(x.shape)}; variances per channel of images have shape (C, 1, 1), "
                "or come from `howsure.noise.per_channel`."
            )
        return var

    @property
    def is_correlated(self) -> bool:
        """Whether elements vary together, as they may in a class with a `root` of its own."""
        return type(self).root is not Noise.root

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The square root of the noise's covariance at `x`, row by row.

        Independent noise has a diagonal one. A noise whose elements are correlated overrides this:
        any linear map from standard normal numbers to noise will do.
        """
        return diagonal(rows_first(self(x), x, batch_dim).sqrt())

    def sample(
        self, x: Tensor, generator: torch.Generator | None, *, batch_dim: int | None = 0
    ) -> Tensor:
        """`x` plus Gaussian noise with the covariance at `x`; `None` takes torch's own generator.

        Inputs along `batch_dim` have noises of their own; with `None`, `x` is one input.
        """
        wide_x = wide(x)
        if not self.is_correlated:
            draws = torch.randn(x.shape, generator=generator, dtype=wide_x.dtype, device=x.device)
            return (x + self(x).sqrt() * draws).to(x.dtype)
        root, rows = self.root(x, batch_dim), 1 if batch_dim is None else x.shape[batch_dim]
        z = torch.randn(
            1, rows, *root.shape, generator=generator, dtype=wide_x.dtype, device=x.device
        )
        noise = root.apply(z, slice(None))[0]
        moved = noise[0] if batch_dim is None else noise.movedim(0, batch_dim)
        return (wide_x + moved).to(x.dtype)

    def independent(self) -> Noise:
        """The noise of the same variance whose elements are independent of each other."""
        return Independent(self)

    def scaled(self, factor: float | Tensor) -> Noise:
        """The noise with `factor` times the variance; a factor of 4 doubles the std."""
        return Scaled(self, as_value(factor, "factor"))

    def through_normalize(self, mean: object, std: object, *, dim: int = 1) -> Noise:
        """The noise of (x - mean) / std, where this is the noise of x.

        The variance is divided by std**2. A noise that depends on the signal sees the input mapped
        back to its own units, x * std + mean. Chain the calls in the order of the preprocessing:
        `noise.through_normalize(0, 255).through_normalize(mean, std)`.

        Args:
            mean: A number, one number per channel, or a tensor that broadcasts to the input.
            std: Likewise, positive.
            dim: The dimension of the input that counts the channels.
        """
        return Normalized(self, as_value(mean, "mean"), as_value(std, "std"), dim)

    def __add__(self, other: Noise) -> Noise:
        """Both noises at once, independent of each other: their variances add."""
        return Sum((self, other)) if isinstance(other, Noise) else NotImplemented

    def to(self, device: torch.device | str) -> Noise:
        """The noise with its tensors on `device`, which saves a copy in every call."""
        fields = {f.name: _moved(getattr(self, f.name), device) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **fields)

    def to_config(self) -> dict[str, object]:
        """The noise as plain data for JSON; `howsure.noise.from_config` reads it back.

        A class of your own is saved by its `kind`, and must be imported before it is loaded: a
        file cannot hold its code. Without a `kind` it is refused.
        """
        own = vars(type(self))
        if not own.get("kind") or "__dataclass_fields__" not in own:
            raise TypeError(
                f"A noise of your own class `{type(self).__name__}` cannot be saved, because a "
                "file cannot hold its code. Make it a dataclass with a `kind` of its own, a name "
                "by which it is found again, or save without it and set the noise after loading."
            )
        fields = {f.name: encode(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"kind": self.kind, **fields}

    @staticmethod
    def of_kind(kind: object) -> type[Noise]:
        """The class that has this `kind`."""
        if not isinstance(kind, str) or kind not in Noise._kinds:
            raise ValueError(
                f"A noise of the kind {kind!r} is one that howsure does not know; it knows "
                f"{', '.join(Noise._kinds)}. A class of your own must be imported first; a newer "
                "version may have more."
            )
        return Noise._kinds[kind]

    @classmethod
    def from_numbers(cls, *numbers: float) -> Noise:
        """The noise whose first fields are these numbers, as the command line gives them."""
        fields, types = dataclasses.fields(cls), get_type_hints(cls)
        needed = sum(f.default is dataclasses.MISSING for f in fields)
        pairs = zip(numbers, (types[f.name] for f in fields), strict=False)
        values = [as_field(number, (hint, *get_args(hint))) for number, hint in pairs]
        if not needed <= len(numbers) <= len(fields) or None in values:
            raise ValueError(
                f"the noise `{cls.kind}` has the fields {', '.join(f.name for f in fields)}, which "
                f"{len(numbers)} numbers do not give; save it with `to_config` and name the file."
            )
        return cls(*values)


@dataclass(frozen=True, eq=False)
class Scaled(Noise):
    """`factor` times the variance of another noise."""

    kind: ClassVar[str] = "scaled"
    noise: Noise
    factor: Value

    def __post_init__(self) -> None:
        check("factor", self.factor)

    @property
    def is_correlated(self) -> bool:
        """Whether the scaled noise is."""
        return self.noise.is_correlated

    def var_at(self, x: Tensor) -> Tensor:
        """factor * var(x)."""
        return like(self.factor, x) * self.noise(x)

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """sqrt(factor) S."""
        if not self.is_correlated:
            return super().root(x, batch_dim)
        std = like(self.factor, wide(x)).sqrt()
        return self.noise.root(x, batch_dim).times(rows_first(std, x, batch_dim))


@dataclass(frozen=True, eq=False)
class Normalized(Noise):
    """Another noise after (x - mean) / std."""

    kind: ClassVar[str] = "normalized"
    noise: Noise
    mean: Value
    std: Value
    dim: int = 1

    def __post_init__(self) -> None:
        check("mean", self.mean, signed=True)
        check("std", self.std, positive=True)

    @property
    def is_correlated(self) -> bool:
        """Whether the noise before is."""
        return self.noise.is_correlated

    def var_at(self, x: Tensor) -> Tensor:
        """var(x * std + mean) / std**2."""
        before, std = self._before(x)
        return self.noise(before) / std.square()

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """S / std, with S at x * std + mean."""
        if not self.is_correlated:
            return super().root(x, batch_dim)
        before, std = self._before(wide(x))
        return self.noise.root(before, batch_dim).times(rows_first(1 / std, x, batch_dim))

    def _before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input before normalisation, and the std by which it was divided."""
        mean, std = along(self.mean, x, self.dim, "mean"), along(self.std, x, self.dim, "std")
        return x * std + mean, std


@dataclass(frozen=True, eq=False)
class Sum(Noise):
    """Noises of one input that are independent of each other."""

    kind: ClassVar[str] = "sum"
    noises: tuple[Noise, ...]

    @property
    def is_correlated(self) -> bool:
        """Whether any of them is."""
        return any(noise.is_correlated for noise in self.noises)

    def var_at(self, x: Tensor) -> Tensor:
        """The sum of the variances."""
        first, *others = (noise(x) for noise in self.noises)
        return sum(others, start=first)

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The roots of all, where noises that are not correlated have one together."""
        if not self.is_correlated:
            return super().root(x, batch_dim)
        roots = [each.root(x, batch_dim) for each in self.noises if each.is_correlated]
        others = tuple(each for each in self.noises if not each.is_correlated)
        return sum_of([*roots, Sum(others).root(x, batch_dim)] if others else roots)


@dataclass(frozen=True, eq=False)
class Independent(Noise):
    """The variance of another noise, without its correlation."""

    kind: ClassVar[str] = "independent"
    noise: Noise

    def var_at(self, x: Tensor) -> Tensor:
        """var(x)."""
        return self.noise(x)


def _moved(value: object, device: torch.device | str) -> object:
    if isinstance(value, Tensor | Noise):
        return value.to(device)
    return tuple(_moved(item, device) for item in value) if isinstance(value, tuple) else value
