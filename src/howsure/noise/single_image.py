"""Constant noise from one image."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.noise.constant import Constant
from howsure.noise.identified import Identified
from howsure.noise.repeats import Limits, plain, readings

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
    demosaicing, JPEG or denoising, biases it downward. The standard error knows of neither.

    Args:
        image: A tensor or an array, channels first, in any units: the noise is in the same.
        per: One variance for everything, or one for each channel, of shape (C, 1, 1).
        saturation: Lowest and highest reading; blocks that reach either are left out.
    """
    if per not in ("all", "channel"):
        raise ValueError(f'`per` is {per!r}; it must be "all" or "channel".')
    channels = _channels(image)
    estimates = [_channel_estimate(channel, saturation) for channel in channels]
    var, error = (torch.stack(values) for values in zip(*estimates, strict=True))
    if not bool(var.any()):
        raise ValueError(
            "The flat parts of the image show no noise at all: it is clipped, denoised or drawn. "
            "Leave out clipped parts with `saturation=(lowest, highest)`, or use a raw image."
        )
    if per == "channel":
        shape = (-1, 1, 1)
        return Identified(Constant(plain(var.reshape(shape))), plain(error.reshape(shape)))
    return Identified(Constant(plain(var.mean())), plain(error.norm() / len(error)))


def _channels(image: object) -> Tensor:  # (C, H, W)
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
    return x if x.dim() == 3 else x.unsqueeze(0)


def _channel_estimate(channel: Tensor, saturation: Limits | None) -> tuple[Tensor, Tensor]:
    """Variance of the noise of one channel, and its standard error."""
    x = channel[None, None]
    mask = torch.tensor(_SECOND_DIFFERENCE, dtype=x.dtype)
    residual = F.conv2d(x, torch.outer(mask, mask)[None, None]) / mask.square().sum()
    usable = torch.ones_like(residual)
    if saturation is not None:
        low, high = saturation
        usable = 1 - F.max_pool2d(((x <= low) | (x >= high)).to(x.dtype), 3, stride=1)
    complete = _blocks(usable).amin(1) > 0
    # Smoothed and second differences hardly correlate: choosing by the one does not bias the other.
    texture = _blocks(F.avg_pool2d(x, 3, stride=1)).var(1)[complete]
    power = _blocks(residual).square().mean(1)[complete]
    kept = int(_FLATTEST * len(power))
    if kept < _FEWEST_BLOCKS:
        raise ValueError(
            f"`image` of {tuple(channel.shape)} pixels has {len(power)} blocks of {_BLOCK} x "
            f"{_BLOCK} pixels that are not saturated; give an image with at least 16."
        )
    return _median_variance(power[texture.argsort()[:kept]])


def _median_variance(power: Tensor) -> tuple[Tensor, Tensor]:
    """The variance whose blocks have this median of mean squares, and its standard error.

    A block's mean square is a sum of correlated squares, with variance 2 tr(C**2) / n**2 and third
    cumulant 8 tr(C**3) / n**3 for unit noise; its median is below its mean by a sixth of the third
    cumulant over the variance (Cornish & Fisher 1938).
    """
    square, cube = (
        float(torch.linalg.matrix_power(_line_correlation(), k).trace()) for k in (2, 3)
    )
    n = _BLOCK**2  # the 2-D correlation is a Kronecker product, whose traces are squares
    var = 2 * square**2 / n**2
    skew = 8 * cube**2 / n**3
    estimate = power.quantile(0.5) / (1 - skew / (6 * var))
    return estimate, estimate * (torch.pi / 2 * var / len(power)) ** 0.5


def _line_correlation() -> Tensor:  # (block, block)
    """Correlation of the second differences of white noise along a line: 1, -4/6, 1/6."""
    mask = torch.tensor(_SECOND_DIFFERENCE, dtype=torch.float64)
    rows = torch.zeros(_BLOCK, _BLOCK + 2, dtype=torch.float64)
    for i in range(_BLOCK):
        rows[i, i : i + 3] = mask / mask.norm()
    return rows @ rows.T


def _blocks(x: Tensor) -> Tensor:  # (1, 1, H, W) -> (blocks, pixels)
    return F.unfold(x, _BLOCK, stride=_BLOCK)[0].T
