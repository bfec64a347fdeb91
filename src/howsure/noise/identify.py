"""A sensor's noise from its readings: repeated frames, a camera's response, a single image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.noise.base import Noise, NoiseEstimate
from howsure.noise.sensors import Constant, PoissonGaussian
from howsure.noise.structure import Structure, structure_of
from howsure.trees import brief

Limits = tuple[float, float]


@dataclass(frozen=True, eq=False, repr=False)
class Identified(NoiseEstimate):
    """A noise of constant variance, estimated from readings.

    Attributes:
        noise: The noise, in the units of the readings.
        std_error: Standard error of `noise.var`, of the same shape; it says how far chance alone
            moves the estimate, not how wrong its assumptions are.
        structure: How elements vary together; `None` where the readings do not tell.

    Examples:
        >>> readings = 3 + 0.1 * torch.randn(400, 2)
        >>> found = hs.noise.identify_from_repeats(readings)
        >>> round(float(found.noise.var), 2), bool(found.std_error < 0.01)
        (0.01, True)
    """

    noise: Constant
    std_error: float | Tensor
    structure: Structure | None = None

    def __repr__(self) -> str:
        """The noise and its error in one line."""
        correlated = ", correlated" if self.correlated.is_correlated else ""
        return f"Identified({self.noise}, standard error {brief(self.std_error)}{correlated})"

    @property
    def correlated(self) -> Noise:
        """The noise with what elements clearly have in common; of the same variance as `noise`."""
        if self.structure is None or not self.structure.is_correlated:
            return self.noise
        return self.structure.noise(self.noise.var)

    @property
    def estimate(self) -> Noise:
        """The correlated noise."""
        return self.correlated

    def numbers(self) -> dict[str, Tensor]:
        """Std, variance, and what elements have in common, with standard errors, in float64."""
        var, var_error = _double(self.noise.var), _double(self.std_error)
        std = var.sqrt()
        # d std = d var / (2 std), to first order
        std_error = var_error / (2 * std.clamp(min=torch.finfo(torch.float64).tiny))
        numbers = {"std": std, "std_error": std_error, "var": var, "var_error": var_error}
        for name, share in ({} if self.structure is None else self.structure.named()).items():
            numbers |= {name: _double(share.value), f"{name}_error": _double(share.error)}
        return numbers

    def in_words(self) -> str:
        """The numbers in one line; in a second one how elements vary together."""
        texts = {name: _range(value) for name, value in self.numbers().items()}
        line = "std {std} +- {std_error}, variance {var} +- {var_error}".format(**texts)
        return line if self.structure is None else f"{line}\n{self.structure.in_words()}"


@dataclass(frozen=True, eq=False, repr=False)
class CameraFit(NoiseEstimate):
    """A camera's noise, fitted to readings; one fit, or one for each channel.

    Attributes:
        noise: The noise, in the units of the readings.
        gain_error: Standard error of `noise.gain`.
        read_var_error: Standard error of `noise.read_std**2`.
        rejected: The share of pixels left out because their variance does not fit.

    Examples:
        >>> scene = torch.linspace(0.1, 0.9, 256).view(1, 1, 16, 16)
        >>> frames = scene + (0.001 * scene + 1e-4).sqrt() * torch.randn(100, 1, 16, 16)
        >>> found = hs.noise.fit_poisson_gaussian(frames)
        >>> round(float(found.noise.gain), 3), bool(found.gain_error < 1e-4)
        (0.001, True)
    """

    noise: PoissonGaussian
    gain_error: float | Tensor
    read_var_error: float | Tensor
    rejected: float | Tensor

    def __repr__(self) -> str:
        """The noise and the share of pixels left out, in one line."""
        return f"CameraFit({self.noise}, rejected {brief(self.rejected)})"

    @property
    def estimate(self) -> Noise:
        """The fitted noise."""
        return self.noise

    def numbers(self) -> dict[str, Tensor]:
        """Gain and variance in the dark with their standard errors, and the share left out."""
        return {
            "gain": _double(self.noise.gain),
            "gain_error": _double(self.gain_error),
            "read_var": _double(self.noise.read_std).square(),
            "read_var_error": _double(self.read_var_error),
            "rejected": _double(self.rejected),
        }

    def in_words(self) -> str:
        """The model and its numbers in two lines."""
        numbers = self.numbers()
        texts = {name: _range(value) for name, value in numbers.items()}
        return (
            "variance = gain * (reading - black level) + read variance\n"
            "gain {gain} +- {gain_error}, read variance {read_var} +- {read_var_error}, "
        ).format(**texts) + f"{_range(100 * numbers['rejected'])} % of the pixels left out"


def _double(value: float | Tensor) -> Tensor:
    """A number or a tensor as a tensor in float64."""
    return torch.as_tensor(value, dtype=torch.float64)


def _range(values: Tensor) -> str:
    """One number; of several the range."""
    if values.numel() == 1:
        return f"{float(values):.4g}"
    return f"{float(values.min()):.4g} to {float(values.max()):.4g}"


def _plain(value: Tensor) -> float | Tensor:
    """A tensor without dimensions as a float; any other in the default dtype."""
    return float(value) if value.dim() == 0 else value.to(torch.get_default_dtype())


class PixelMoments(NamedTuple):
    """Mean and variance of every pixel over repeated frames, in float64."""

    frames: Tensor  # (T, ...)
    mean: Tensor
    var: Tensor  # unbiased
    spread: float  # relative variance of `var` for Gaussian noise, Var[var] / variance**2
    valid: Tensor  # where no frame is saturated


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
    variance. What elements of a frame have in common, and how neighbors correlate, is in
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

    Examples:
        >>> readings = 3 + 0.1 * torch.randn(400, 2)  # of a body at rest
        >>> found = hs.noise.identify_from_repeats(readings)
        >>> round(float(found.noise.var), 2)
        0.01
    """
    moments = pixel_moments(frames, drift=drift, saturation=saturation)
    dims = moments.var.dim()
    if per not in ("all", "channel", "element"):
        raise ValueError(f'`per` is {per!r}; it must be "all", "channel" or "element".')
    if per == "channel" and dims == 0:
        raise ValueError('`frames` has no channels; give (T, C, ...), or `per="all"`.')
    averaged = list(range({"all": 0, "channel": 1, "element": dims}[per], dims))

    def total(values: Tensor) -> Tensor:
        """The sum over valid pixels; dimensions stay (as 1) unless all of them are summed."""
        values = values * moments.valid
        return values.sum(averaged, keepdim=len(averaged) < dims) if averaged else values

    count = total(torch.ones_like(moments.var))
    if bool((count == 0).any()):
        raise ValueError(
            "All pixels of a group reach the limits of `saturation` in some frame; use another "
            'exposure, wider limits, or a coarser `per`, such as "all".'
        )
    var = total(moments.var) / count
    # E[var**2] is variance**2 (1 + spread): unbiased for the square of the standard error.
    error = total(moments.var.square() * moments.spread / (1 + moments.spread)).sqrt() / count
    # Frames with the covariance of the noise, but for that of one frame with another.
    x = moments.frames
    unbiased = (len(x) / (len(x) - 1)) ** 0.5
    residuals = x.diff(dim=0) / 2**0.5 if drift else (x - moments.mean) * unbiased
    freedom = 2 / moments.spread
    structure = structure_of(residuals, moments.valid, freedom)
    if structure is not None and averaged:
        # For Gaussian noise, 2 / freedom times the mean of squared covariances.
        offsets = var * structure.offset_norm * math.sqrt(2 / freedom)
        error = torch.hypot(error * structure.neighbor_norm, offsets)
    return Identified(Constant(_plain(var)), _plain(error), structure)


def pixel_moments(
    frames: object,  # (T, ...)
    *,
    drift: bool = False,
    saturation: Limits | None = None,
) -> PixelMoments:
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
            "and not denoised, or `howsure.noise.quantization` if the noise is below one step."
        )
    return PixelMoments(x, x.mean(0), var, spread, valid)


def readings(values: object, name: str) -> Tensor:
    """Readings of a sensor in float64, on the CPU; NaN and infinity are refused."""
    if isinstance(values, list | tuple):
        parts = [
            readings(part if isinstance(part, Tensor) else np.asarray(part), name)
            for part in values
        ]
        shapes = {tuple(part.shape) for part in parts}
        if len(shapes) != 1:
            raise ValueError(
                f"`{name}` has parts of the shapes {sorted(shapes)}; give at least one part, and "
                "all of the same shape."
            )
        return torch.stack(parts)
    if isinstance(values, Tensor):
        values = values.detach().cpu()  # not every device has float64
        is_real = not values.dtype.is_complex and values.dtype != torch.bool
    else:
        values = np.asarray(values)
        is_real = values.dtype.kind in "iuf"
    if not is_real:
        raise TypeError(f"`{name}` is {values.dtype}; give readings as floats or integers.")
    # A copy of an array, since torch takes no reversed or read-only ones.
    x = values.double() if isinstance(values, Tensor) else torch.from_numpy(values.astype(float))
    if x.numel() == 0 or not bool(x.isfinite().all()):
        raise ValueError(
            f"`{name}` is empty or contains NaN or infinity; leave out invalid readings first."
        )
    return x


# A parameter more standard errors below 0 is not there by chance: the model is wrong.
_IMPOSSIBLE = 4.0
# The least variance of the scene, in units of that of the pixels' means, for which the correction
# of errors in the means was tried: bias below a standard error at 100,000 pixels.
_CONTRAST = 10.0
# A pixel whose variance is off by more standard deviations is not off by chance (6e-5).
_OUTLIER = 4.0
_GROUPS = 100  # for the first guess: things that fill 1 % of the image count
_ITERATIONS = 50


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

    Examples:
        >>> scene = torch.linspace(0.1, 0.9, 256).view(1, 1, 16, 16)
        >>> frames = scene + (0.001 * scene + 1e-4).sqrt() * torch.randn(100, 1, 16, 16)
        >>> fit = hs.noise.fit_poisson_gaussian(frames)
        >>> round(float(fit.noise.gain), 3)
        0.001
    """
    if per not in ("all", "channel"):
        raise ValueError(f'`per` is {per!r}; it must be "all" or "channel".')
    moments = pixel_moments(frames, drift=drift, saturation=saturation)
    shape: tuple[int, ...] = ()  # of the parameters: (C, 1, 1) for frames (C, H, W)
    if per == "channel":
        if moments.mean.dim() < 2:
            raise ValueError(
                '`frames` has no channels with pixels; give (T, C, ...), or `per="all"`.'
            )
        shape = (len(moments.mean),) + (1,) * (moments.mean.dim() - 1)
    light = (moments.mean - black_level).clamp(min=0)
    channels = [part.reshape(math.prod(shape), -1) for part in (light, moments.var, moments.valid)]
    lines = [
        _fit_line(light[valid], var[valid], len(moments.frames), moments.spread)
        for light, var, valid in zip(*channels, strict=True)
    ]
    params, errors, rejected = (torch.stack(column, -1) for column in zip(*lines, strict=True))
    gain, read_std, gain_error, read_var_error, rejected = (
        _plain(row.reshape(shape)) for row in (params[0], params[1].sqrt(), *errors, rejected)
    )
    noise = PoissonGaussian(gain, read_std, float(black_level))
    return CameraFit(noise, gain_error, read_var_error, rejected)


def _fit_line(
    light: Tensor,  # (pixels,), not negative
    var: Tensor,  # (pixels,)
    frames: int,
    spread: float,
) -> tuple[Tensor, Tensor, Tensor]:  # (2,), (2,), ()
    """Gain and read variance of var = gain * light + read_var, their errors, share of outliers.

    By least squares with weights 1 / fitted**2, outliers left out: Var[var] is proportional to the
    square of the variance. Weights and outliers follow from the line, so that both are iterated.
    The errors are the sandwich estimate (White 1980), which does not assume Gaussian noise. A
    parameter below 0 by chance is set to 0, any other is refused.
    """
    typical = var.median() if len(var) else 0.0
    if len(light) < 3 or not bool(light.var() > _CONTRAST * typical / frames):
        raise ValueError(
            f"The {len(light)} pixels that are not saturated show too little contrast to tell gain "
            "from read noise; use a scene with dark and bright parts and more frames, or "
            "`identify_from_repeats` for a constant noise."
        )
    if not bool(typical > 0):
        raise ValueError(
            "Most pixels are the same in all frames, so their variances are unreliable; give more "
            "frames, or `identify_from_repeats` the same ones."
        )
    design = torch.stack([light, torch.ones_like(light)], 1)  # (pixels, 2)
    cube_var = spread / 9

    def fitted(params: Tensor) -> Tensor:  # (pixels,)
        """Variances on the line; a thousandth of their mean bounds the weight of dark pixels."""
        line = design @ params
        return line.clamp(min=1e-3 * float(line.mean()))

    def weights_of(params: Tensor) -> Tensor:  # (pixels,)
        """1 / fitted**2, and 0 for outliers; a step may overshoot to negative parameters."""
        line = fitted(params.clamp(min=0))
        # The cube root of a chi square is almost normal (Wilson & Hilferty 1931), also for 1
        # degree of freedom.
        score = ((var / line) ** (1 / 3) - (1 - cube_var)) / cube_var**0.5
        return (score.abs() < _OUTLIER) / line.square()

    def solve(weights: Tensor, params: Tensor) -> Tensor:  # (2,)
        """The weighted normal equations, free of the bias from errors in the means.

        `light` has the error e, Var[e] = var / T, which flattens the line; it also enters the
        weights, and goes along with `var` by the third cumulant gain**2 * light of the photons. To
        first order in 1 / T the normal equations are off by the two sums of `bias`, where share =
        read_var / var. They vanish for pure photon noise.
        """
        gain, read_var = params
        share = read_var / fitted(params)
        bias = torch.stack([read_var * (1 - 2 * share), 2 * gain * share]) * gain / frames
        weighted = design * weights.unsqueeze(1)
        return torch.linalg.solve(weighted.T @ design, weighted.T @ var - (bias * weights).sum(1))

    # First a line through the medians of groups of like intensity, robust to outliers.
    groups = light.argsort().tensor_split(min(_GROUPS, max(2, len(light) // 10)))
    x = torch.stack([light[group].mean() for group in groups])
    y = torch.stack([var[group].median() for group in groups])
    y = y / (1 - cube_var) ** 3  # chi square: median over mean (Wilson & Hilferty 1931)
    scale = (y + y.mean()).unsqueeze(1)
    line = torch.stack([x, torch.ones_like(x)], 1) / scale
    params = torch.linalg.lstsq(line, y.unsqueeze(1) / scale).solution.squeeze(1)
    for _ in range(_ITERATIONS):
        before = params
        params = solve(weights_of(params), params.clamp(min=0))
        if torch.allclose(params, before, rtol=1e-6, atol=0):
            break

    weights = weights_of(params)
    weighted = design * weights.unsqueeze(1)
    scores = weighted * (var - design @ params).unsqueeze(1)
    inverse = torch.linalg.inv(weighted.T @ design)
    errors = (inverse @ (scores.T @ scores) @ inverse).diagonal().sqrt()
    rejected = (weights == 0).double().mean()
    if bool((params < 0).any()):
        index = int(params.argmin())  # both cannot be negative: variances are not
        if float(params[index]) < -_IMPOSSIBLE * float(errors[index]):
            raise ValueError(_REMEDIES[index].format(float(params[index])))
        other = design[:, 1 - index]
        params = torch.zeros_like(params)
        params[1 - index] = (weights * other * var).sum() / (weights * other.square()).sum()
    return params, errors, rejected


_REMEDIES = (
    "The variance falls with the intensity (gain {:g}), as no raw camera's does; use raw frames, "
    "and leave out clipped pixels with `saturation=(lowest, highest)`.",
    "The fitted variance in the dark is {:g}, and cannot be negative; give the camera's "
    "`black_level`, use raw frames, and leave out clipped pixels with `saturation=`.",
)

_BLOCK = 8  # pixels; the residual of a block has about 20 degrees of freedom
_SECOND_DIFFERENCE = (1.0, -2.0, 1.0)
# Share of the blocks that counts, those with the least texture. On two photographs with noise of 2
# to 10 gray levels added, the std came out at most 10 % off; the median of all pixels gave 2.2 x.
_FLATTEST = 0.25
_FEWEST_BLOCKS = 4


def identify_from_image(
    image: object,  # (H, W) or (C, H, W)
    *,
    per: Literal["all", "channel"] = "all",
    saturation: Limits | None = None,
) -> Identified:
    """The noise of a camera, guessed from a single image; prefer repeated frames where you can.

    Second differences along both axes remove what is smooth and leave the noise (Immerkaer 1996).
    Their mean square is taken in blocks of 8 x 8 pixels; the quarter of the blocks that varies
    least after smoothing counts, and the median of these is the estimate.

    Texture that is left **biases it upward**; noise that is correlated between pixels, as after
    demosaicing, JPEG or denoising, biases it downward. The standard error accounts for neither.

    Args:
        image: A tensor or an array, channels first, in any units: the noise is in the same.
        per: One variance for everything, or one for each channel, of shape (C, 1, 1).
        saturation: Lowest and highest reading; blocks that reach either are left out.

    Examples:
        >>> smooth = torch.linspace(0, 1, 64).expand(1, 64, 64)
        >>> found = hs.noise.identify_from_image(smooth + 0.05 * torch.randn(1, 64, 64))
        >>> round(float(found.noise.var) ** 0.5, 2)
        0.05
    """
    if per not in ("all", "channel"):
        raise ValueError(f'`per` is {per!r}; it must be "all" or "channel".')
    x = readings(image, "image")
    if x.dim() not in (2, 3):
        raise ValueError(
            f"`image` has shape {tuple(x.shape)}; give one image, (H, W) or (C, H, W)."
        )
    if x.dim() == 3 and x.shape[-1] <= 4 < x.shape[0]:
        raise ValueError(
            f"`image` has shape {tuple(x.shape)}, with the channels last; put them first, for "
            "example with `image.transpose(2, 0, 1)`."
        )
    channels = x if x.dim() == 3 else x.unsqueeze(0)
    estimates = [
        median_variance(_flattest_powers(channel[None, None], saturation)) for channel in channels
    ]
    var, error = (torch.stack(values) for values in zip(*estimates, strict=True))
    if not bool(var.any()):
        raise ValueError(
            "The flat parts of the image show no noise at all: it is clipped, denoised or drawn. "
            "Leave out clipped parts with `saturation=(lowest, highest)`, or use a raw image."
        )
    if per == "channel":
        var, error = var.reshape(-1, 1, 1), error.reshape(-1, 1, 1)
    else:
        var, error = var.mean(), error.norm() / len(error)
    return Identified(Constant(_plain(var)), _plain(error))


def _flattest_powers(x: Tensor, saturation: Limits | None) -> Tensor:  # (1, 1, H, W) -> (blocks,)
    """Mean squares of the second differences in the blocks with the least texture."""

    def blocks(pixels: Tensor) -> Tensor:  # (1, 1, H, W) -> (blocks, pixels)
        return F.unfold(pixels, _BLOCK, stride=_BLOCK)[0].T

    mask = x.new_tensor(_SECOND_DIFFERENCE)
    residual = F.conv2d(x, torch.outer(mask, mask)[None, None]) / mask.square().sum()
    usable = torch.ones_like(residual)
    if saturation is not None:
        low, high = saturation
        usable = 1 - F.max_pool2d(((x <= low) | (x >= high)).to(x.dtype), 3, stride=1)
    complete = blocks(usable).amin(1) > 0
    # Smoothed and second differences hardly correlate: choosing by the one does not bias the other.
    texture = blocks(F.avg_pool2d(x, 3, stride=1)).var(1)[complete]
    power = blocks(residual).square().mean(1)[complete]
    count = int(_FLATTEST * len(power))
    if count < _FEWEST_BLOCKS:
        raise ValueError(
            f"`image` of {tuple(x.shape[2:])} pixels has {len(power)} blocks of {_BLOCK} x "
            f"{_BLOCK} pixels that are not saturated; give an image with at least 16."
        )
    return power[texture.argsort()[:count]]


def median_variance(power: Tensor) -> tuple[Tensor, Tensor]:  # (blocks,)
    """The variance whose blocks have this median of mean squares, and its standard error.

    A block's mean square is a sum of correlated squares, with variance 2 tr(C**2) / n**2 and third
    cumulant 8 tr(C**3) / n**3 for unit noise; its median is below its mean by a sixth of the third
    cumulant over the variance (Cornish & Fisher 1938).
    """
    # The correlation of second differences along a line is 1, -4/6, 1/6; that in a block is its
    # Kronecker product with itself, whose traces are squares.
    mask = power.new_tensor(_SECOND_DIFFERENCE)
    differences = power.new_zeros(_BLOCK, _BLOCK + 2)
    for i in range(_BLOCK):
        differences[i, i : i + 3] = mask / mask.norm()
    correlation, n = differences @ differences.T, _BLOCK**2
    square, cube = (float(torch.linalg.matrix_power(correlation, k).trace()) for k in (2, 3))
    var = 2 * square**2 / n**2
    skew = 8 * cube**2 / n**3
    estimate = power.quantile(0.5) / (1 - skew / (6 * var))
    return estimate, estimate * (torch.pi / 2 * var / len(power)) ** 0.5
