"""What howsure says of the network's outputs, beside what brute force finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.demo.brute_force import BruteForce, Network
from howsure.demo.data import Digits
from howsure.moments import Moments
from howsure.propagate import propagate


@dataclass(frozen=True)
class Winner:
    """Moments of one output per digit, that of the class which howsure's mean puts first."""

    predicted: Moments  # (n,), by propagation
    sampled: Moments  # (n,), by brute force

    @property
    def ratio(self) -> float:
        """Mean predicted std over mean true std: 1 is right, below 1 is too sure."""
        return float(self.predicted.var.sqrt().mean() / self.sampled.var.sqrt().mean())


@dataclass(frozen=True)
class Comparison:
    """Digits read at one noise level, and two answers to how sure the network is of each."""

    noise_std: float
    readings: Digits
    plain: Tensor  # (n,), class according to the plain network
    says: Tensor  # (n,), class according to the propagated mean
    logit: Winner
    probability: Winner
    doubt: Tensor  # (n,), p (1 - p) of the same class by the plain network: what needs no howsure

    @property
    def correct(self) -> Tensor:
        """Where the propagated mean names the right digit; shape (n,)."""
        return self.says == self.readings.labels

    @property
    def by_certainty(self) -> Tensor:
        """Positions of the digits, the smallest predicted std of the probability first; (n,)."""
        return self.probability.predicted.var.argsort(stable=True)


@torch.inference_mode()
def compare(
    network: Network, readings: Digits, noise_std: float, brute_force: BruteForce
) -> Comparison:
    """The moments of the network's outputs for noisy readings, by both ways."""
    out = propagate(network, readings.images, noise_std**2)
    says = out.mean[1].argmax(1)
    sampled = brute_force.moments(network, readings.images, noise_std)
    logit, probability = (
        Winner(_of_class(Moments(mean, var), says), _of_class(truth, says))
        for mean, var, truth in zip(out.mean, out.var, sampled, strict=True)
    )
    plain = network(readings.images)[1]
    doubt = _doubt(plain, says)
    return Comparison(noise_std, readings, plain.argmax(1), says, logit, probability, doubt)


def _doubt(
    probabilities: Tensor,  # (n, 10)
    index: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """p (1 - p), with 1 - p as the sum of the others: it keeps its digits where p is nearly 1."""
    others = probabilities.scatter(1, index[:, None], 0).sum(1)
    return probabilities.gather(1, index[:, None])[:, 0] * others


def _of_class(
    moments: Moments,  # (n, 10)
    index: Tensor,  # (n,)
) -> Moments:  # (n,)
    def pick(tensor: Tensor) -> Tensor:
        return tensor.gather(1, index[:, None])[:, 0]

    return Moments(pick(moments.mean), pick(moments.var))
