"""Noise that depends on the signal: cameras, range sensors, and any function of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.values import Value, as_value, check, like
from howsure.trees import has_values


@dataclass(frozen=True, eq=False)
class PoissonGaussian(Noise):
    """Camera noise, in raw intensities: gain * max(x - black_level, 0) + read_std**2."""

    kind: ClassVar[str] = "poisson_gaussian"
    gain: Value
    read_std: Value
    black_level: Value = 0.0

    def __post_init__(self) -> None:
        check("gain", self.gain)
        check("read_std", self.read_std)
        check("black_level", self.black_level, signed=True)

    def var_at(self, x: Tensor) -> Tensor:
        """Gain * max(x - black_level, 0) + read_std**2."""
        light = (x - like(self.black_level, x)).clamp(min=0)
        return like(self.gain, x) * light + like(self.read_std, x).square()


@dataclass(frozen=True, eq=False)
class RangeDependent(Noise):
    """Noise of a range sensor: (a + b r + c r**2)**2 at the range r = max(x, 0)."""

    kind: ClassVar[str] = "range_dependent"
    a: Value
    b: Value
    c: Value = 0.0

    def __post_init__(self) -> None:
        for name in "abc":
            check(name, getattr(self, name))

    def var_at(self, x: Tensor) -> Tensor:
        """(a + b r + c r**2)**2."""
        r = x.clamp(min=0)
        return (like(self.a, x) + r * (like(self.b, x) + r * like(self.c, x))).square()


@dataclass(frozen=True, eq=False)
class Custom(Noise):
    """The variance that a function of the input gives."""

    function: Callable[[Tensor], object]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"`custom` takes a function of the input that returns its variance, and was given "
                f"a {type(self.function).__name__}; use `variance` for a number or a tensor."
            )

    def var_at(self, x: Tensor) -> Tensor:
        """What the function returns, checked to be a variance."""
        var = torch.as_tensor(self.function(x), dtype=x.dtype, device=x.device)
        if has_values(var) and not bool(((var >= 0) & var.isfinite()).all()):
            raise ValueError(
                f"{_name(self.function)} returned a variance that is negative, NaN or infinite; "
                "it must return the square of the noise's standard deviation at each element."
            )
        return var

    def to_config(self) -> dict[str, object]:
        """Refused: a function is not plain data."""
        raise TypeError(
            f"The custom noise {_name(self.function)} cannot be saved, because a function is not "
            "plain data; use one of the noises of `howsure.noise`, or set the noise again after "
            "loading."
        )


def poisson_gaussian(
    gain: object, read_std: object, *, black_level: object = 0.0
) -> PoissonGaussian:
    """Noise of a camera: photons arrive at random, and reading them out adds noise.

    The variance is gain * max(x - black_level, 0) + read_std**2, at x in the camera's raw
    intensities (Foi et al. 2008). For a model that sees something else, chain
    `through_normalize`: `poisson_gaussian(0.1, 2).through_normalize(0, 255)`.

    The variance is taken at the reading, which stands for the unknown true intensity.

    Args:
        gain: Intensity units per electron; a number, or a tensor such as (C, 1, 1).
        read_std: Standard deviation in the dark, in intensity units.
        black_level: The intensity that the camera gives in the dark.
    """
    parts = {"gain": gain, "read_std": read_std, "black_level": black_level}
    return PoissonGaussian(**{name: as_value(value, name) for name, value in parts.items()})


def range_dependent(a: object, b: object, c: object = 0.0) -> RangeDependent:
    """Noise of a LiDAR or depth camera, whose std grows with the range: a + b r + c r**2.

    Time of flight: `a` and `b`, from the data sheet. Stereo and structured light: mostly `c`, since
    the error of a triangulated depth is that of the disparity times r**2 / (focal length x base
    line). The variance is the square; a negative reading counts as range 0.
    """
    return RangeDependent(as_value(a, "a"), as_value(b, "b"), as_value(c, "c"))


def custom(function: Callable[[Tensor], object]) -> Custom:
    """Noise whose variance is `function(x)`, for inputs as the model sees them.

    The function returns a number or a tensor that broadcasts to `x`. Such a noise cannot be saved.
    """
    return Custom(function)


def _name(function: Callable[..., object]) -> str:
    return f"`{getattr(function, '__name__', type(function).__name__)}`"
