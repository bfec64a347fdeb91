"""Label-preserving corruptions of held-out inputs: shifts that a network may meet in use.

They fit how fast the variance grows with the novelty. Images are (batch, channels, height, width);
tables (batch, features). Strengths are relative to the spread of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Corruption = Callable[[Tensor], Tensor]
Stress = Literal["auto", "images", "tables"] | Sequence[Corruption]


def _generator(x: Tensor) -> torch.Generator:
    """The same corruption for the same batch size, whatever was drawn before."""
    return torch.Generator().manual_seed(len(x))


def _noise(x: Tensor) -> Tensor:
    """White noise of a quarter of the inputs' std."""
    return x + 0.25 * x.std() * torch.randn(x.shape, generator=_generator(x)).to(x)


def _blur(x: Tensor) -> Tensor:
    """The mean over 5 x 5 pixels."""
    return F.avg_pool2d(F.pad(x, (2, 2, 2, 2), mode="replicate"), 5, stride=1)


def _occlusion(x: Tensor) -> Tensor:
    """A gray square over a quarter of the image's sides."""
    height, width = (max(1, side // 4) for side in x.shape[-2:])
    out, generator = x.clone(), _generator(x)
    for image in out:
        top = int(torch.randint(x.shape[-2] - height + 1, (), generator=generator))
        left = int(torch.randint(x.shape[-1] - width + 1, (), generator=generator))
        image[:, top : top + height, left : left + width] = x.mean()
    return out


def _salt_and_pepper(x: Tensor) -> Tensor:
    """One pixel in twenty at the smallest or the largest value."""
    u = torch.rand(x.shape[0], 1, *x.shape[2:], generator=_generator(x)).to(x.device)
    low, high = x.aminmax()
    return torch.where(u < 0.025, low, torch.where(u > 0.975, high, x))


def _pixelate(x: Tensor) -> Tensor:
    """Blocks of 4 x 4 pixels."""
    small = F.avg_pool2d(x, 4, ceil_mode=True)
    return F.interpolate(small, scale_factor=4.0)[..., : x.shape[-2], : x.shape[-1]]


def _brightness(x: Tensor) -> Tensor:
    """Brighter by half a std for one half of the inputs, darker for the other."""
    sign = torch.ones(len(x), *(1,) * (x.dim() - 1)).to(x)
    sign[::2] = -1
    return x + 0.5 * x.std() * sign


def _contrast(x: Tensor) -> Tensor:
    """Half the contrast around the mean of each input."""
    mean = x.mean(tuple(range(1, x.dim())), keepdim=True)
    return mean + 0.5 * (x - mean)


def _wider(x: Tensor) -> Tensor:
    """Half again as far from the mean of all inputs."""
    mean = x.mean(0, keepdim=True)
    return mean + 1.5 * (x - mean)


def _missing(x: Tensor) -> Tensor:
    """One feature in ten at its mean."""
    u = torch.rand(x.shape, generator=_generator(x)).to(x.device)
    return torch.where(u < 0.1, x.mean(0, keepdim=True), x)


def _feature_noise(x: Tensor) -> Tensor:
    """Noise of a quarter of each feature's std."""
    return x + 0.25 * x.std(0) * torch.randn(x.shape, generator=_generator(x)).to(x)


IMAGES: tuple[Corruption, ...] = (
    _noise,
    _blur,
    _occlusion,
    _salt_and_pepper,
    _pixelate,
    _brightness,
    _contrast,
)
TABLES: tuple[Corruption, ...] = (_feature_noise, _wider, _missing)
_KINDS = {"images": (IMAGES, 4), "tables": (TABLES, 2)}


def corruptions(stress: Stress | None, x: Tensor) -> tuple[Corruption, ...]:
    """The corruptions that were asked for, checked against an example of the inputs.

    "auto" are those of images, if the inputs look like these, and else none.
    """
    if stress is None:
        return ()
    if stress == "auto":
        return IMAGES if _are_images(x) else ()
    if not isinstance(stress, str):
        return tuple(stress)
    if stress not in _KINDS:
        raise ValueError(
            f"`stress` must be one of {sorted(_KINDS)}, a list of functions, or None, not "
            f"{stress!r}."
        )
    known, dims = _KINDS[stress]
    if not isinstance(x, Tensor) or x.dim() != dims:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f'`stress="{stress}"` is for inputs of {dims} axes, and these are {shape}; give '
            "functions of your own: `stress=[my_blur, my_fog]`."
        )
    return known


def _are_images(x: object) -> bool:
    """Whether an input looks like pictures: four axes, the second of one to four channels."""
    return isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] <= 4 and x.is_floating_point()
