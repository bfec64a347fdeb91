"""The posterior over multipliers at every pixel of dense outputs.

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

import torch
from torch import Tensor

from howsure.posterior.laplace import Gram, Posterior, one_for_zero


@dataclass(frozen=True, eq=False)
class PixelGradients:
    """The gradients of every pixel, z = s w h.

    Attributes:
        output: The output of the network, in its own shape.
        channels: h, (batch, pixels, 1 or outputs, channels): the inputs of the last layer, or
            derivatives along directions.
        slopes: s, (batch, pixels, outputs): derivative of the output with respect to the layer's.
        weight: w, (outputs, channels): of the layer.
        channels_first: Whether `output` is (batch, outputs, ...) or (batch, ..., outputs).
        masks: The number of multipliers.
    """

    output: Tensor
    channels: Tensor
    slopes: Tensor
    weight: Tensor
    channels_first: bool
    masks: int

    @property
    def z(self) -> Tensor:  # (batch, pixels, outputs, channels)
        """Gradients of every output with respect to the multiplier of every channel."""
        return self.slopes[..., None] * self.weight * self.channels

    def select(self, samples: Tensor | slice) -> PixelGradients:
        """The gradients of some samples of the batch."""
        output, channels = self.output[samples], self.channels[samples]
        return replace(self, output=output, channels=channels, slopes=self.slopes[samples])

    def by_pixel(self, values: Tensor) -> Tensor:
        """Values in the shape of the output as (batch, pixels, outputs)."""
        return by_pixel(values, len(self.weight), channels_first=self.channels_first)

    def shaped(self, values: Tensor) -> Tensor:
        """The inverse: (batch, pixels, outputs) in the shape of the output."""
        return from_pixels(values, self.output.shape, channels_first=self.channels_first)

    def predictive_variance(self, posterior: Posterior) -> Tensor:
        """m at every pixel, (batch, pixels, outputs), in double precision.

        Samples are computed one by one: the result does not depend on the batch, and memory is
        that of one sample.
        """
        posterior.check_multipliers(self.masks)
        whitening = posterior.whitening.to(self.channels.device)
        scale = posterior.scale.to(self.channels.device)
        maps = (
            whitening * (self.weight.double() / scale[:, None])[:, None]
        )  # (outputs, d, channels)
        variance = torch.empty_like(self.slopes, dtype=torch.float64)
        for index, (channels, slopes) in enumerate(zip(self.channels, self.slopes, strict=True)):
            by_output = channels.double().expand(-1, len(maps), -1).unbind(1)
            squares = [
                (h @ map_.mT).square().sum(1) for h, map_ in zip(by_output, maps, strict=True)
            ]
            variance[index] = torch.stack(squares, 1) * slopes.double().square() / maps.shape[2]
        return variance


def by_pixel(values: Tensor, channels: int, *, channels_first: bool) -> Tensor:
    """A tensor (batch, channels, ...) or (batch, ..., channels) as (batch, pixels, channels)."""
    if channels_first:
        return values.flatten(2).mT
    return values.reshape(len(values), math.prod(values.shape[1:]) // channels, channels)


def from_pixels(values: Tensor, shape: torch.Size, *, channels_first: bool) -> Tensor:
    """The inverse of `by_pixel`."""
    return (values.mT if channels_first else values).reshape(shape)


class PixelGram:
    """The sum of (s h)(s h)' over pixels, in memory that does not grow with their number.

    Attributes:
        inputs: The number of inputs.
        pixels: The number of their pixels.
        masks: The number of multipliers.
        total: The sum for each output, (outputs, channels, channels).
        weight: w, (outputs, channels).
    """

    def __init__(self) -> None:
        self.inputs, self.pixels, self.masks = 0, 0, 0
        self.total: Tensor | float = 0.0
        self.weight: Tensor | None = None

    def add(self, gradients: PixelGradients) -> None:
        """Adds a batch."""
        inputs, pixels = gradients.slopes.shape[:2]
        self.inputs, self.pixels = self.inputs + inputs, self.pixels + inputs * pixels
        self.weight, self.masks = gradients.weight.double(), gradients.masks
        for channels, slopes in zip(gradients.channels, gradients.slopes, strict=True):
            scaled = (channels.double() * slopes.double()[..., None]).movedim(1, 0)
            self.total = self.total + scaled.mT @ scaled

    def __add__(self, other: PixelGram) -> PixelGram:
        """The sum over the pixels of both, which are of one layer."""
        both = PixelGram()
        both.inputs, both.pixels = self.inputs + other.inputs, self.pixels + other.pixels
        both.masks, both.total = max(self.masks, other.masks), self.total + other.total
        both.weight = other.weight if self.weight is None else self.weight
        return both

    def posterior(self, ridge: float) -> Posterior:
        """The posterior given these inputs."""
        assert isinstance(self.total, Tensor) and self.weight is not None
        products = self.total * self.weight[:, :, None] * self.weight[:, None]  # sums of z z'
        sizes = products.diagonal(dim1=1, dim2=2).mean(1) / self.pixels
        scale = one_for_zero(sizes).sqrt()
        gram = Gram(scale)
        gram.total = (products / scale.square()[:, None, None]).mean(0)
        gram.count, gram.masks = self.pixels, self.masks
        return gram.posterior(ridge)
