"""The posterior over multipliers at every pixel of dense outputs.

A backward pass for every pixel is out of the question. One forward pass with all multipliers moved
along a direction v gives z' v at every pixel; some directions of random signs are a sketch of z.
"""

from __future__ import annotations

import torch
from torch import Tensor

from howsure.posterior.laplace import Gram, Posterior, one_for_zero


def pixel_variance(posterior: Posterior, z: Tensor, masks: int) -> Tensor:
    """m at every pixel, (batch, pixels, outputs), from (batch, pixels, outputs, directions).

    Samples are computed one by one: the result does not depend on the batch, and memory is that
    of one sample.
    """
    posterior.check_multipliers(masks)
    scale, whitening = posterior.scale.to(z.device)[:, None], posterior.whitening.to(z.device)
    variance = z.new_empty(z.shape[:3], dtype=torch.float64)
    for index, sample in enumerate(z):
        variance[index] = ((sample.double() / scale) @ whitening.mT).square().mean(2)
    return variance


class PixelGram:
    """The sum of z z' over pixels, in memory that does not grow with their number.

    Attributes:
        inputs: The number of inputs.
        pixels: The number of their pixels.
        masks: The number of multipliers.
        total: The sum for each output, (outputs, directions, directions).
    """

    def __init__(self) -> None:
        self.inputs, self.pixels, self.masks = 0, 0, 0
        self.total: Tensor | float = 0.0

    def add(self, z: Tensor, masks: int) -> None:  # (batch, pixels, outputs, directions)
        """Adds a batch."""
        self.inputs, self.pixels = self.inputs + len(z), self.pixels + len(z) * z.shape[1]
        self.masks = masks
        for sample in z:
            by_output = sample.double().movedim(1, 0)
            self.total = self.total + by_output.mT @ by_output

    def __add__(self, other: PixelGram) -> PixelGram:
        """The sum over the pixels of both."""
        both = PixelGram()
        both.inputs, both.pixels = self.inputs + other.inputs, self.pixels + other.pixels
        both.masks, both.total = max(self.masks, other.masks), self.total + other.total
        return both

    def posterior(self, ridge: float) -> Posterior:
        """The posterior given these inputs."""
        assert isinstance(self.total, Tensor)
        sizes = self.total.diagonal(dim1=1, dim2=2).mean(1) / self.pixels
        gram = Gram(one_for_zero(sizes).sqrt())
        gram.total = (self.total / one_for_zero(sizes)[:, None, None]).mean(0)
        gram.count, gram.masks = self.pixels, self.masks
        return gram.posterior(ridge)
