"""Monte Carlo: noisy samples through the plain network, the measure for every cleverer way."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from howsure.moments.value import Moments
from howsure_lab.digits.data import sense

Network = Callable[[Tensor], tuple[Tensor, Tensor]]

# So many images go through the network at once: enough to be fast, little enough for any memory.
_AT_ONCE = 5000


def with_probabilities(model: nn.Module) -> Network:
    """The model with its probabilities beside its logits, so that one pass answers for both."""

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return logits, logits.softmax(1)

    return run


def sampled_moments(
    network: Network,
    readings: Tensor,  # (n, 1, 8, 8)
    noise_std: float,
    copies: int,
    generator: torch.Generator,
) -> tuple[Moments, Moments]:  # (n, 10) each
    """Moments of logits and probabilities over copies with noise around each reading.

    The clean image is not known to whoever holds a reading: as far as the sensor tells, it lies
    around the reading as the noise does. Propagation assumes the same.
    """
    copies = copies if noise_std > 0 else 2  # without noise one copy is like the other
    parts = []
    for part in readings.split(max(1, _AT_ONCE // copies)):
        noisy = sense(part.expand(copies, *part.shape), noise_std, generator)
        outputs = network(noisy.flatten(0, 1))
        parts.append([_moments(each.unflatten(0, (copies, -1))) for each in outputs])
    logits, probabilities = (
        Moments(*(torch.cat([getattr(each, name) for each in column]) for name in ("mean", "var")))
        for column in zip(*parts, strict=True)
    )
    return logits, probabilities


def _moments(samples: Tensor) -> Moments:  # (copies, n, 10) -> (n, 10)
    # In float64: a probability of nearly 1 has a std near the rounding error of float32.
    var, mean = torch.var_mean(samples.double(), dim=0)
    return Moments(mean.to(samples.dtype), var.to(samples.dtype))
