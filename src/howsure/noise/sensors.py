"""Noise that is independent between elements: constant, or a function of the signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from howsure.noise.base import Noise, Numbers, Value, along_channels, as_value, check, like
from howsure.trees import has_values


@dataclass(frozen=True, eq=False)
class Constant(Noise):
    """The same variance for every input: a number, or a tensor that broadcasts to the input.

    Examples:
        >>> hs.noise.Constant(0.04)(torch.zeros(2))
        tensor(0.0400)
    """

    kind: ClassVar[str] = "constant"
    var: Value

    def __post_init__(self) -> None:
        self._convert("var")

    @property
    def uniform_var(self) -> float | None:
        """The variance, unless it is a tensor or a subclass changes it."""
        is_plain = type(self) in (Constant, GrayLevels)
        return self.var if is_plain and isinstance(self.var, float) else None

    def var_at(self, x: Tensor) -> Tensor:
        """The variance, whatever `x` is."""
        return like(self.var, x)


@dataclass(frozen=True, eq=False)
class GrayLevels(Constant):
    """A constant variance that was stated for pixels between 0 and `white`."""

    kind: ClassVar[str] = "gray_levels"
    white: float = 1.0

    def describe_contradiction(self, pixels: Tensor) -> str | None:
        """What to say where the range of the pixels is not the one that the noise was stated for.

        Noise reaches a little beyond black and white.
        """
        if not pixels.numel() or not has_values(pixels):
            return None
        low, high = map(float, pixels.detach().aminmax())
        if low < -0.1 * self.white:
            end = f"down to {low:.3g}"
            remedy = (
                "if they are normalized, give `normalize_std=` as well, else the std is too small"
            )
        elif high > 2 * self.white or (self.white > 2 and 0 < high <= 1):
            end = f"up to {high:.3g}"
            remedy = "give the `scale=` that your pixels have, 255 for [0, 1] and 1 for [0, 255]"
        else:
            return None
        stated = f"the noise was stated for pixels between 0 and {self.white:g}"
        return f"The pixels go {end}, and {stated}: {remedy}."


@dataclass(frozen=True, eq=False)
class PerChannel(Noise):
    """One variance for each channel, the channels being counted by dimension `dim` of the input."""

    kind: ClassVar[str] = "per_channel"
    var: Tensor  # (channels,)
    dim: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.var, Tensor) or self.var.dim() != 1:
            raise ValueError("`per_channel` takes a list of numbers, one for each channel.")
        check("var", self.var)

    def var_at(self, x: Tensor) -> Tensor:
        """The variances, laid along the channels."""
        return along_channels(self.var, x, self.dim, "variances")


@dataclass(frozen=True, eq=False)
class PoissonGaussian(Noise):
    """Camera noise, in raw intensities: gain * max(x - black_level, 0) + read_std**2."""

    kind: ClassVar[str] = "poisson_gaussian"
    gain: Value
    read_std: Value
    black_level: Value = 0.0

    def __post_init__(self) -> None:
        self._convert("gain", "read_std")
        self._convert("black_level", signed=True)

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
        self._convert("a", "b", "c")

    def var_at(self, x: Tensor) -> Tensor:
        """(a + b r + c r**2)**2."""
        r = x.clamp(min=0)
        return (like(self.a, x) + r * (like(self.b, x) + r * like(self.c, x))).square()


@dataclass(frozen=True, eq=False)
class Custom(Noise):
    """The variance that a function of the input returns."""

    function: Callable[[Tensor], object]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"`custom` takes a function of the input that returns its variance, and was given "
                f"a {type(self.function).__name__}; use `variance` for a number or a tensor."
            )

    def var_at(self, x: Tensor) -> Tensor:
        """What the function returns, checked to be a variance."""
        # It may write into its argument, which is the caller's.
        value = self.function(x.clone())
        if isinstance(value, str | complex) or torch.is_complex(torch.as_tensor(value)):
            raise TypeError(
                f"`{self._name()}` returned a {type(value).__name__} that is no variance; it must "
                "return real numbers, one for each element or some that broadcast to the input."
            )
        var = torch.as_tensor(value, dtype=x.dtype, device=x.device)
        if has_values(var) and not bool(((var >= 0) & var.isfinite()).all()):
            raise ValueError(
                f"`{self._name()}` returned a variance that is negative, NaN or infinite; it must "
                "return the square of the noise's standard deviation at each element."
            )
        return var

    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def to_config(self) -> dict[str, object]:
        """Refused: a function is not plain data."""
        raise TypeError(
            f"The custom noise `{self._name()}` cannot be saved, because a function is not plain "
            "data; use one of the noises of `howsure.noise`, or set the noise again after loading."
        )


def variance(v: Numbers) -> Constant:
    """Noise of variance `v`: a number, or a tensor that broadcasts to the input.

    Shapes, for a batch of images (B, C, H, W): `(C, 1, 1)` per channel, `(C, H, W)` per pixel,
    `(B, 1, 1, 1)` per sample. For a batch of feature vectors (B, F): `(F,)` per feature, `(B, 1)`
    per sample.

    Examples:
        >>> hs.noise.variance(0.04)(torch.zeros(2))
        tensor(0.0400)
    """
    return Constant(v)


def _square(value: Numbers, name: str) -> Value:
    """The square of a std, which must not be negative."""
    value = as_value(value, name)
    check(name, value)
    return value * value


def std(s: Numbers) -> Constant:
    """Noise of standard deviation `s`, that is of variance s**2; shapes as in `variance`.

    Examples:
        >>> hs.noise.std(0.1)(torch.zeros(1))
        tensor(0.0100)
    """
    return Constant(_square(s, "s"))


def per_channel(*, variances: Numbers = None, stds: Numbers = None, dim: int = 1) -> PerChannel:
    """Noise with one variance for each channel.

    Args:
        variances: The variances, one for each channel; or give `stds`.
        stds: The standard deviations, one for each channel.
        dim: The dimension of the input that counts the channels.

    Examples:
        >>> noise = hs.noise.per_channel(stds=[0.1, 0.2])
        >>> noise(torch.zeros(1, 2, 1, 1)).flatten()
        tensor([0.0100, 0.0400])
    """
    if (variances is None) == (stds is None):
        raise ValueError("Give `per_channel` either `variances=` or `stds=`, and not both.")
    values = as_value(variances, "variances") if stds is None else _square(stds, "stds")
    return PerChannel(torch.as_tensor(values), dim)


def gray_levels(
    k: float,
    *,
    kind: Literal["std", "variance"] = "std",
    scale: float = 255,
    normalize_std: Numbers = None,
    dim: int = 1,
) -> Noise:
    """Noise of `k` gray levels of a camera whose levels are divided by `scale`.

    "A noise variance of 2 grayscale levels" (Loquercio, Segu & Scaramuzza 2020, Sec. IV-A) can be
    read in two ways; for a model that sees [0, 1], with k = 2:

    - `kind="std"`, the default: the standard deviation is 2 levels, the variance
      (k / scale)**2 = 6.2e-5. This is what cameras are specified by.
    - `kind="variance"`: the variance is 2 levels**2, that is k / scale**2 = 3.1e-5.

    Args:
        k: The number of gray levels.
        kind: What `k` is.
        scale: Gray levels per unit of the model's input: 255 if it sees [0, 1], 1 if [0, 255].
        normalize_std: The std by which the input is divided afterwards, as in torchvision's
            `Normalize`; a number, or one for each channel. The variance is divided by its square.
        dim: The dimension of the input that counts the channels.

    Examples:
        >>> hs.noise.gray_levels(51)(torch.zeros(1))  # (51 / 255)**2
        tensor(0.0400)
    """
    if kind not in ("std", "variance"):
        raise ValueError(f'`kind` is {kind!r}; say what `k` is: "std" or "variance".')
    check("k", float(k))
    check("scale", float(scale), positive=True)
    noise = GrayLevels((k * k if kind == "std" else k) / scale**2, 255 / scale)
    return noise if normalize_std is None else noise.through_normalize(0, normalize_std, dim=dim)


def quantization(step: Numbers) -> Constant:
    """Noise of rounding to multiples of `step`: variance step**2 / 12.

    Exact for an error spread evenly over one step, and near enough when the other noise is above
    half a step (Widrow & Kollar 2008). 8 bits on [0, 1]: `quantization(1 / 255)`.

    Examples:
        >>> hs.noise.quantization(0.5)(torch.zeros(1))  # 0.5**2 / 12
        tensor(0.0208)
    """
    return Constant(_square(step, "step") / 12)


def imu(density: Numbers, rate: float) -> Constant:
    """White noise of a gyroscope or accelerometer: variance density**2 * rate.

    This is Kalibr's model, where the sensor is filtered to half the sampling rate and the density
    is two-sided. For a one-sided density, and for another filter, `rate` is the filter's bandwidth.

    Args:
        density: Noise density, in units per sqrt(Hz); a number, or one for each axis (the last
            dimension of the input).
        rate: Sampling rate in Hz.

    Examples:
        >>> gyroscope = hs.noise.imu(density=0.01, rate=100)
        >>> gyroscope(torch.zeros(3))
        tensor(0.0100)
    """
    check("rate", float(rate), positive=True)
    return Constant(_square(density, "density") * rate)


def poisson_gaussian(
    gain: Numbers, read_std: Numbers, *, black_level: Numbers = 0.0
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

    Examples:
        >>> noise = hs.noise.poisson_gaussian(gain=0.01, read_std=0.1)
        >>> noise(torch.tensor([0.0, 1.0]))  # 0.1**2 + 0.01 x
        tensor([0.0100, 0.0200])
    """
    return PoissonGaussian(gain, read_std, black_level)


def range_dependent(a: Numbers, b: Numbers, c: Numbers = 0.0) -> RangeDependent:
    """Noise of a LiDAR or depth camera, whose std grows with the range: a + b r + c r**2.

    Time of flight: `a` and `b`, from the datasheet. Stereo and structured light: mostly `c`, since
    the error of a triangulated depth is that of the disparity times r**2 / (focal length x
    baseline). The variance is the square; a negative reading counts as range 0.

    Examples:
        >>> lidar = hs.noise.range_dependent(0.1, 0.05)  # std 0.1 + 0.05 r
        >>> lidar(torch.tensor([0.0, 2.0]))
        tensor([0.0100, 0.0400])
    """
    return RangeDependent(a, b, c)


def custom(function: Callable[[Tensor], object]) -> Custom:
    """Noise whose variance is `function(x)`, for inputs as the model sees them.

    The function returns a number or a tensor that broadcasts to `x`. Such a noise cannot be saved.

    Examples:
        >>> noise = hs.noise.custom(lambda x: 0.01 * x.abs())
        >>> noise(torch.tensor([1.0, -4.0]))
        tensor([0.0100, 0.0400])
    """
    return Custom(function)
