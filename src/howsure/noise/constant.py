"""Noise that does not depend on the signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.values import Value, along, as_value, check, like


@dataclass(frozen=True, eq=False)
class Constant(Noise):
    """The same variance for every input: a number, or a tensor that broadcasts to the input."""

    kind: ClassVar[str] = "constant"
    var: Value

    def __post_init__(self) -> None:
        check("var", self.var)

    def var_at(self, x: Tensor) -> Tensor:
        """The variance, whatever `x` is."""
        return like(self.var, x)


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
        return along(self.var, x, self.dim, "variances")


def variance(v: object) -> Constant:
    """Noise of variance `v`: a number, or a tensor that broadcasts to the input.

    Shapes, for a batch of images (B, C, H, W): `(C, 1, 1)` per channel, `(C, H, W)` per pixel,
    `(B, 1, 1, 1)` per sample. For a batch of feature vectors (B, F): `(F,)` per feature, `(B, 1)`
    per sample.
    """
    return Constant(as_value(v, "v"))


def std(s: object) -> Constant:
    """Noise of standard deviation `s`, that is of variance s**2; shapes as in `variance`."""
    value = as_value(s, "s")
    check("s", value)
    return Constant(value * value)


def per_channel(
    *, variances: Sequence[float] | Tensor | None = None, stds: object = None, dim: int = 1
) -> PerChannel:
    """Noise with one variance for each channel.

    Args:
        variances: The variances, one for each channel; or give `stds`.
        stds: The standard deviations, one for each channel.
        dim: The dimension of the input that counts the channels.
    """
    if (variances is None) == (stds is None):
        raise ValueError("Give `per_channel` either `variances=` or `stds=`, and not both.")
    values = torch.as_tensor(as_value(stds if variances is None else variances, "variances"))
    check("stds" if variances is None else "variances", values)
    return PerChannel(values.square() if variances is None else values, dim)


def gray_levels(
    k: float,
    *,
    kind: Literal["std", "variance"] = "std",
    scale: float = 255,
    normalize_std: object = None,
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
    """
    if kind not in ("std", "variance"):
        raise ValueError(f'`kind` is {kind!r}; say what `k` is: "std" or "variance".')
    check("k", float(k))
    check("scale", float(scale), positive=True)
    noise = Constant((k * k if kind == "std" else k) / scale**2)
    return noise if normalize_std is None else noise.through_normalize(0, normalize_std, dim=dim)


def quantisation(step: object) -> Constant:
    """Noise of rounding to multiples of `step`: variance step**2 / 12.

    Exact for an error spread evenly over one step, and near enough when the other noise is above
    half a step (Widrow & Kollar 2008). 8 bits on [0, 1]: `quantisation(1 / 255)`.
    """
    value = as_value(step, "step")
    check("step", value)
    return Constant(value * value / 12)


def imu(density: object, rate: float) -> Constant:
    """White noise of a gyroscope or accelerometer: variance density**2 * rate.

    This is Kalibr's model, where the sensor is filtered to half the sampling rate and the density
    is two-sided. For a one-sided density, and for another filter, `rate` is the filter's bandwidth.

    Args:
        density: Noise density, in units per sqrt(Hz); a number, or one for each axis (the last
            dimension of the input).
        rate: Sampling rate in Hz.
    """
    value = as_value(density, "density")
    check("density", value)
    check("rate", float(rate), positive=True)
    return Constant(value * value * rate)
