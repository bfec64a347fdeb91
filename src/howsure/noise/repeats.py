"""Constant noise from repeated readings of something that does not move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from howsure.noise.constant import Constant
from howsure.noise.identified import Identified
from howsure.noise.structure import structure_of

Limits = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Repeats:
    """Mean and variance of every pixel over repeated frames, in float64.

    Attributes:
        frames: How many frames there are.
        mean: Mean over the frames.
        var: Unbiased estimate of the variance.
        spread: Relative variance of `var` for Gaussian noise, Var[var] / variance**2.
        valid: Where no frame is saturated.
    """

    frames: int
    mean: Tensor
    var: Tensor
    spread: float
    valid: Tensor


def identify_from_repeats(
    frames: object,  # (T, ...)
    *,
    per: Literal["all", "channel", "element"] = "all",
    drift: bool = False,
    saturation: Limits | None = None,
) -> Identified:
    """The noise of a sensor, from repeated readings of a static scene (or of a body at rest).

    The variance over the T frames is estimated for each pixel, unbiased, and averaged. Its standard
    error holds for Gaussian noise that is independent between frames; pixels may differ in
    variance. What elements of a frame have in common, and how neighbours correlate, is in
    `structure`; `correlated` is the noise with both.

    Args:
        frames: Frames as a tensor, an array or a list, in any units: the noise is in the same.
            Integers (uint8 images) keep their values, so that the noise is in gray levels.
        per: One variance for everything; for each channel, counted by dimension 1 of `frames`; or
            for each element of a frame (pixel, feature), which takes many frames: the relative
            standard error is sqrt(2 / (T - 1)).
        drift: Use the differences of successive frames, (x[t+1] - x[t])**2 / 2, which ignore a
            slow drift of the light or of a bias (von Neumann et al. 1941).
        saturation: Lowest and highest reading of the sensor; pixels that reach either in any frame
            are left out, since clipping hides their noise.
    """
    x = readings(frames, "frames")
    repeats = pixel_moments(x, drift=drift, saturation=saturation)
    dims = _averaged_dims(repeats.var, per)
    count = _count(repeats.valid, dims)
    # E[var**2] is variance**2 (1 + spread): unbiased for the square of the standard error.
    error2 = repeats.var.square() * repeats.spread / (1 + repeats.spread)
    var = _total(repeats.var, repeats.valid, dims) / count
    error = _total(error2, repeats.valid, dims).sqrt() / count
    residuals = _residuals(x, repeats.mean, drift)
    structure = structure_of(residuals, repeats.valid, 2 / repeats.spread)
    if structure is not None and dims:
        error = structure.error(error, var, 2 / repeats.spread)
    return Identified(Constant(plain(var)), plain(error), structure)


def _residuals(x: Tensor, mean: Tensor, drift: bool) -> Tensor:
    """Frames of the noise's own covariance, but for that of one frame with another."""
    if drift:
        return x.diff(dim=0) / 2**0.5
    return (x - mean) * (len(x) / (len(x) - 1)) ** 0.5


def pixel_moments(
    frames: object,  # (T, ...)
    *,
    drift: bool = False,
    saturation: Limits | None = None,
) -> Repeats:
    """Mean, variance and validity of every pixel of repeated frames."""
    x = readings(frames, "frames")
    if x.dim() == 0 or len(x) < 2:
        raise ValueError(
            f"`frames` has shape {tuple(x.shape)}, which is fewer than 2 frames; give at least 2 "
            "readings of the same scene, along the first dimension."
        )
    low, high = saturation or (-torch.inf, torch.inf)
    valid = ((x > low) & (x < high)).all(0)
    steps = len(x) - 1
    if drift:
        var, spread = x.diff(dim=0).square().mean(0) / 2, (3 * len(x) - 4) / steps**2
    else:
        var, spread = x.var(0), 2 / steps
    if not bool(var.any()):
        raise ValueError(
            "The frames are all equal, so they show no noise; use frames taken one after the other "
            "and not denoised, or `howsure.noise.quantisation` if the noise is below one step."
        )
    return Repeats(len(x), x.mean(0), var, spread, valid)


def readings(values: object, name: str) -> Tensor:
    """Readings of a sensor in float64, values unchanged; NaN and infinity are refused."""
    if isinstance(values, list | tuple):
        items = [_float64(item, name) for item in values]
        shapes = {tuple(item.shape) for item in items}
        if len(shapes) != 1:
            raise ValueError(
                f"`{name}` has parts of the shapes {sorted(shapes)}; give at least one part, and "
                "all of the same shape."
            )
        tensor = torch.stack(items)
    else:
        tensor = _float64(values, name)
    if tensor.numel() == 0 or not bool(torch.isfinite(tensor).all()):
        raise ValueError(
            f"`{name}` is empty or contains NaN or infinity; leave out invalid readings first."
        )
    return tensor


def _float64(values: object, name: str) -> Tensor:
    if isinstance(values, Tensor):
        real = not (values.dtype.is_complex or values.dtype == torch.bool)
    else:
        values = np.asarray(values)
        real = values.dtype.kind in "iuf"
    if not real:
        raise TypeError(f"`{name}` is {values.dtype}; give readings as floats or integers.")
    if isinstance(values, Tensor):
        return values.detach().cpu().to(torch.float64)  # not every device has float64
    return torch.from_numpy(values.astype(np.float64))  # also from reversed, read-only arrays


def plain(value: Tensor) -> float | Tensor:
    """A tensor without dimensions as a float; any other in the default dtype."""
    return float(value) if value.dim() == 0 else value.to(torch.get_default_dtype())


def _averaged_dims(var: Tensor, per: str) -> list[int]:
    """Which dimensions of a frame share one variance."""
    if per not in ("all", "channel", "element"):
        raise ValueError(f'`per` is {per!r}; it must be "all", "channel" or "element".')
    if per == "channel" and var.dim() == 0:
        raise ValueError('`frames` has no channels; give (T, C, ...), or `per="all"`.')
    first = {"all": 0, "channel": 1, "element": var.dim()}[per]
    return list(range(first, var.dim()))


def _total(x: Tensor, valid: Tensor, dims: list[int]) -> Tensor:
    """The sum over valid pixels; dimensions stay (as 1) unless all of them are summed."""
    masked = x * valid
    if not dims:
        return masked
    return masked.sum() if len(dims) == x.dim() else masked.sum(dims, keepdim=True)


def _count(valid: Tensor, dims: list[int]) -> Tensor:
    count = _total(torch.ones(valid.shape, dtype=torch.float64), valid, dims)
    if bool((count == 0).any()):
        raise ValueError(
            "All pixels of a group reach the limits of `saturation` in some frame; use another "
            'exposure, wider limits, or a coarser `per`, such as "all".'
        )
    return count
