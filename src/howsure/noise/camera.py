"""A camera's Poisson-Gaussian noise from repeated frames of a static scene."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from howsure.noise.identified import CameraFit
from howsure.noise.repeats import Limits, pixel_moments, plain
from howsure.noise.signal import PoissonGaussian
from howsure.noise.variance_line import Line, Pixels, fit_line, fit_one

# A parameter more standard errors below 0 is not there by chance: the model is wrong.
_IMPOSSIBLE = 4.0
# The least variance of the scene, in units of that of the pixels' means, for which the correction
# of errors in the means was tried: bias below a standard error at 100,000 pixels.
_CONTRAST = 10.0


def fit_poisson_gaussian(
    frames: object,  # (T, ...)
    *,
    per: Literal["all", "channel"] = "all",
    black_level: float = 0.0,
    saturation: Limits | None = None,
    drift: bool = False,
) -> CameraFit:
    """A camera's gain and read noise, from repeated frames of a static scene with contrast.

    Each pixel's variance over the frames is regressed on its mean, var = gain * (mean -
    black_level) + read_std**2, by robust weighted least squares. Pixels that do not fit (moving
    things, hot and dead pixels) are left out. The standard errors assume independent pixels: use
    raw frames, before demosaicing, denoising and gamma.

    Args:
        frames: Raw intensities; integers keep their values, and the noise is in the same units.
        per: One fit for everything, or one for each channel, counted by dimension 1 of `frames`.
        black_level: The intensity that the camera gives in the dark.
        saturation: Lowest and highest reading; pixels that reach either are left out.
        drift: Use the differences of successive frames, against slowly changing light.
    """
    if per not in ("all", "channel"):
        raise ValueError(f'`per` is {per!r}; it must be "all" or "channel".')
    repeats = pixel_moments(frames, drift=drift, saturation=saturation)
    shape = _group_shape(repeats.mean, per)
    parts = ((repeats.mean - black_level).clamp(min=0), repeats.var, repeats.valid)
    rows = [part.reshape(max(1, *shape, 1), -1) for part in parts]
    lines = [
        _possible_line(Pixels(light[valid], var[valid], repeats.frames, repeats.spread))
        for light, var, valid in zip(*rows, strict=True)
    ]
    return _camera(lines, shape, float(black_level))


def _group_shape(frame: Tensor, per: str) -> tuple[int, ...]:
    """The shape of the parameters: one for everything, or (C, 1, 1) for frames (C, H, W)."""
    if per == "all":
        return ()
    if frame.dim() < 2:
        raise ValueError('`frames` has no channels with pixels; give (T, C, ...), or `per="all"`.')
    return (len(frame),) + (1,) * (frame.dim() - 1)


def _possible_line(pixels: Pixels) -> Line:
    """The fitted line; a parameter below 0 by chance is set to 0, any other is refused."""
    _check_pixels(pixels)
    line = fit_line(pixels)
    if bool((line.params >= 0).all()):
        return line
    index = int(line.params.argmin())  # both cannot be negative: variances are not
    if float(line.params[index]) < -_IMPOSSIBLE * float(line.errors[index]):
        raise ValueError(_REMEDY[index].format(float(line.params[index])))
    return line._replace(params=fit_one(pixels, line, 1 - index))


def _check_pixels(pixels: Pixels) -> None:
    count, typical = len(pixels.light), pixels.var.median() if len(pixels.var) else 0.0
    if count < 3 or not bool(pixels.light.var() > _CONTRAST * typical / pixels.frames):
        raise ValueError(
            f"The {count} pixels that are not saturated show too little contrast to tell gain from "
            "read noise; use a scene with dark and bright parts and more frames, or "
            "`identify_from_repeats` for a constant noise."
        )
    if not bool(typical > 0):
        raise ValueError(
            "Most pixels are the same in all frames, so that their variances say little; give more "
            "frames, or `identify_from_repeats` the same ones."
        )


_REMEDY = (
    "The variance falls with the intensity (gain {:g}), as no raw camera's does; use raw frames, "
    "and leave out clipped pixels with `saturation=(lowest, highest)`.",
    "The fitted variance in the dark is {:g}, and cannot be negative; give the camera's "
    "`black_level`, use raw frames, and leave out clipped pixels with `saturation=`.",
)


def _camera(lines: list[Line], shape: tuple[int, ...], black_level: float) -> CameraFit:
    params, errors = (
        torch.stack([getattr(line, name) for line in lines], 1) for name in ("params", "errors")
    )
    rejected = torch.stack([line.rejected for line in lines])
    gain, read_std, gain_error, read_var_error, left_out = (
        plain(row.reshape(shape)) for row in (params[0], params[1].sqrt(), *errors, rejected)
    )
    noise = PoissonGaussian(gain, read_std, black_level)
    return CameraFit(noise, gain_error, read_var_error, left_out)
