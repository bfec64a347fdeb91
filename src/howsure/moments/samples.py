"""Inputs with which the laws of the test suite exercise a rule; they live in the rule's file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from howsure.moments.value import Moments


class Sample:
    """One call of an operation: positional and keyword arguments, the random ones `Moments`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args
        self.kwargs = kwargs


class Draw:
    """Draws reproducible float64 arguments for samples."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def constant(self, *shape: int) -> Tensor:
        """A constant tensor of standard normal values."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def positive(self, *shape: int) -> Tensor:
        """A constant tensor of values between 0.5 and 1.5."""
        return 0.5 + torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def moments(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Moments:
        """Gaussians around `mean` whose standard deviations spread around `std`."""
        return Moments(mean + self.constant(*shape), (std * self.positive(*shape)).square())


Samples = Callable[[Draw], Iterable[Sample]]


def one_of_each_shape(draw: Draw) -> Iterable[Sample]:
    """Samples of an elementwise op: a vector, a matrix and an image."""
    yield Sample(draw.moments(7))
    yield Sample(draw.moments(3, 5, mean=0.5, std=0.3))
    yield Sample(draw.moments(2, 3, 4, 4, mean=-1.0, std=2.0))
