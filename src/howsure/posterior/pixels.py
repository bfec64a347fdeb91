"""The posterior over masks at every pixel of dense outputs.

A backward pass for every pixel is out of the question. There are two ways to the gradients z:

- **All layers, along some directions.** One forward pass with all multipliers moved along a
  direction v gives z' v at every pixel. Some directions of random signs are a sketch of z.
- **The last layer alone**, where it is the same at every pixel. An output is f_o(p) =
  g(sum_k w_ok h_k(p) + b_o) with g a function of one number, often none, and the gradient with
  respect to a multiplier of channel k is exact: z_ok(p) = s_o(p) w_ok h_k(p), s = g'. So z z' is
  w w' times (s h)(s h)', element by element, and m is one more 1 x 1 convolution with its squares
  added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from howsure.posterior.laplace import Gram, MaskPosterior


@dataclass(frozen=True, eq=False)
class AtPixels:
    """The gradients of every pixel, z = s w h.

    Attributes:
        output: What the network says, in its own shape.
        channels: h, (inputs, pixels, 1 or outputs, channels): the inputs of the last layer, or
            derivatives along directions.
        slopes: s, (inputs, pixels, outputs): derivative of the output with respect to the layer's.
        weight: w, (outputs, channels): of the layer.
        channels_first: Whether `output` is (inputs, outputs, ...) or (inputs, ..., outputs).
        masks: How many multipliers there are.
    """

    output: Tensor
    channels: Tensor
    slopes: Tensor
    weight: Tensor
    channels_first: bool
    masks: int

    @property
    def z(self) -> Tensor:  # (inputs, pixels, outputs, channels)
        """Gradients of every output with respect to the multiplier of every channel."""
        return self.slopes[..., None] * self.weight * self.channels

    def rows(self, chosen: Tensor | list[int]) -> AtPixels:
        """The same of some inputs."""
        output, channels = self.output[chosen], self.channels[chosen]
        return replace(self, output=output, channels=channels, slopes=self.slopes[chosen])

    def by_pixel(self, numbers: Tensor) -> Tensor:
        """Numbers in the shape of the output as (inputs, pixels, outputs)."""
        return by_pixel(numbers, len(self.weight), channels_first=self.channels_first)

    def shaped(self, numbers: Tensor) -> Tensor:
        """The inverse: (inputs, pixels, outputs) in the shape of the output."""
        return from_pixels(numbers, self.output.shape, channels_first=self.channels_first)


def by_pixel(numbers: Tensor, channels: int, *, channels_first: bool) -> Tensor:
    """A tensor (inputs, channels, ...) or (inputs, ..., channels) as (inputs, pixels, channels)."""
    if channels_first:
        return numbers.flatten(2).mT
    return numbers.reshape(len(numbers), math.prod(numbers.shape[1:]) // channels, channels)


def from_pixels(numbers: Tensor, shape: torch.Size, *, channels_first: bool) -> Tensor:
    """The inverse of `by_pixel`."""
    return (numbers.mT if channels_first else numbers).reshape(shape)


class PixelGram:
    """Sums of (s h)(s h)' over pixels, in memory that does not grow with their number."""

    def __init__(self) -> None:
        """Starts empty."""
        self.inputs, self.pixels, self.masks = 0, 0, 0
        self.total: Tensor | None = None  # (outputs, channels, channels)
        self.weight: Tensor | None = None  # (outputs, channels)

    def add(self, seen: AtPixels) -> None:
        """One more batch."""
        inputs, pixels = seen.slopes.shape[:2]
        self.inputs, self.pixels = self.inputs + inputs, self.pixels + inputs * pixels
        self.weight, self.masks = seen.weight.double(), seen.masks
        for channels, slopes in zip(seen.channels, seen.slopes, strict=True):
            scaled = (channels.double() * slopes.double()[..., None]).movedim(1, 0)
            more = scaled.mT @ scaled
            self.total = more if self.total is None else self.total + more

    def __add__(self, other: PixelGram) -> PixelGram:
        """The sums of both, which are of one layer."""
        both, parts = PixelGram(), [each for each in (self, other) if each.total is not None]
        both.inputs, both.pixels = self.inputs + other.inputs, self.pixels + other.pixels
        totals = [each.total for each in parts if each.total is not None]
        both.total = reduce(add, totals) if totals else None
        both.weight, both.masks = (parts or [self])[0].weight, max(self.masks, other.masks)
        return both

    def posterior(self, ridge: float) -> MaskPosterior:
        """The posterior that these inputs give."""
        assert self.total is not None and self.weight is not None
        of_each = self.total * self.weight[:, :, None] * self.weight[:, None]  # sums of z z'
        sizes = of_each.diagonal(dim1=1, dim2=2).mean(1) / self.pixels
        # An output that no channel moves has nothing to scale.
        scale = torch.where(sizes > 0, sizes, 1.0).sqrt()
        gram = Gram(scale)
        gram.total = (of_each / scale.square()[:, None, None]).mean(0)
        gram.count, gram.masks = self.pixels, self.masks
        return gram.posterior(ridge)


def m_at_pixels(posterior: MaskPosterior, seen: AtPixels) -> Tensor:
    """What the masks leave open at every pixel, (inputs, pixels, outputs), in double precision.

    Each input by itself: its result does not depend on its batch, and memory is that of one.
    """
    posterior.check_masks(seen.masks)
    whitening, scale = (t.to(seen.channels.device) for t in (posterior.whitening, posterior.scale))
    maps = whitening * (seen.weight.double() / scale[:, None])[:, None]  # (outputs, d, channels)
    found = torch.empty_like(seen.slopes, dtype=torch.float64)
    for own, channels, slopes in zip(found, seen.channels, seen.slopes, strict=True):
        own.copy_(_m_of_one(maps, channels, slopes))
    return found


def _m_of_one(maps: Tensor, channels: Tensor, slopes: Tensor) -> Tensor:  # (pixels, outputs)
    wide = channels.double().expand(-1, len(maps), -1).unbind(1)
    squares = [(each @ own.mT).square().sum(1) for each, own in zip(wide, maps, strict=True)]
    return torch.stack(squares, 1) * slopes.double().square() / maps.shape[2]
