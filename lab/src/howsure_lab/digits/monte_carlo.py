"""Monte Carlo: noisy samples through the plain network, the measure for every cleverer way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.value import Moments
from howsure_lab.digits.data import sense

Outputs = tuple[Tensor, Tensor]
Network = Callable[[Tensor], Outputs]

# So many images go through the network at once: enough to be fast, little enough for any memory.
_AT_ONCE = 5000


def with_probabilities(model: torch.nn.Module) -> Network:
    """The model with its probabilities beside its logits, so that one pass answers for both."""

    def run(images: Tensor) -> Outputs:
        logits = model(images)
        return logits, F.softmax(logits, dim=1)

    return run


@dataclass(frozen=True)
class MonteCarlo:
    """How many noisy samples of each reading, from which random numbers."""

    copies: int
    generator: torch.Generator
    on_progress: Callable[[int], object] = lambda count: None

    def moments(
        self,
        network: Network,
        readings: Tensor,  # (n, 1, 8, 8)
        noise_std: float,
    ) -> tuple[Moments, Moments]:  # (n, 10) each
        """Moments of logits and probabilities over copies with noise around each reading.

        The clean image is not known to whoever holds a reading: as far as the sensor tells, it
        lies around the reading as the noise does. Propagation assumes the same.
        """
        copies = self.copies if noise_std > 0 else 2  # without noise one copy is like the other
        found: list[list[Moments]] = []
        for part in readings.split(max(1, _AT_ONCE // copies)):
            noisy = sense(part.expand(copies, *part.shape), noise_std, self.generator)
            outputs = network(noisy.flatten(0, 1))
            found.append([_sample_moments(output.unflatten(0, (copies, -1))) for output in outputs])
            self.on_progress(len(part))
        logits, probabilities = (_joined(parts) for parts in zip(*found, strict=True))
        return logits, probabilities


def _sample_moments(
    values: Tensor,  # (copies, n, 10)
) -> Moments:  # (n, 10)
    # In float64: a probability of nearly 1 has a std near the rounding error of float32.
    var, mean = torch.var_mean(values.double(), dim=0)
    return Moments(mean.to(values.dtype), var.to(values.dtype))


def _joined(parts: Sequence[Moments]) -> Moments:
    return Moments(torch.cat([p.mean for p in parts]), torch.cat([p.var for p in parts]))
