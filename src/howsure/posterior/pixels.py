"""The posterior over multipliers at every pixel of dense outputs.

A backward pass for every pixel is out of the question. One forward pass with all multipliers moved
along a direction v gives z' v at every pixel; some directions of random signs are a sketch of z.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.posterior.laplace import Gram, Posterior, one_for_zero, posterior_of


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


def pixel_posterior_of(grams: Sequence[PixelGram], ridge: float) -> Posterior:
    """The posterior given the pixels of several sums."""
    total, pixels = sum(gram.total for gram in grams), sum(gram.pixels for gram in grams)
    assert isinstance(total, Tensor)
    sizes = one_for_zero(total.diagonal(dim1=1, dim2=2).mean(1) / pixels)
    scaled = Gram(sizes.sqrt())
    scaled.total = (total / sizes[:, None, None]).mean(0)
    scaled.count, scaled.masks = pixels, max(gram.masks for gram in grams)
    return posterior_of([scaled], ridge)
