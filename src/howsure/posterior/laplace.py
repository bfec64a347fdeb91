"""The posterior over multipliers: the directions that inputs like the training data leave open.

One multiplier stands at every unit or channel of every layer. Its prior is the same in all
directions; inputs of the kind that the network was trained on show in which of them the predictions
would change. With z(x) the gradient of an output with respect to all d multipliers,

    m(x) = z(x)' (C + ridge I)^-1 z(x) / d,    C = the mean of z z' over known inputs,

where z is scaled so that the diagonal of C has mean 1. This is the linearized Laplace approximation
over multipliers in place of weights: no labels, no Hessian, and d x d numbers however many weights
the network has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.trees import outside_tracing

# Multipliers up to which the matrix is exact; more are sketched to as many numbers. On DroNet (704
# multipliers, 256 numbers) a sketch moves the NLL of no condition by more than 0.01.
EXACT = 1024
SKETCHED = 1024


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian over the multipliers; its fields are saved under these names.

    Attributes:
        whitening: Inverse of the precision's Cholesky factor, (d, d), or of that of its sketch.
        scale: Root mean square of the gradients of each output, (outputs,).
        count: The number of inputs that it was computed from.
        masks: The number of multipliers.
    """

    whitening: Tensor
    scale: Tensor
    count: int
    masks: int

    def covariance(self, z: Tensor) -> Tensor:
        """The predictive covariance, (batch, outputs, outputs), of unit prior variance.

        `z` are the gradients, (batch, outputs, multipliers).
        """
        self.check_multipliers(z.shape[2])
        scale, whitening = self.scale.to(z.device), self.whitening.to(z.device)
        white = sketch(z.double() / one_for_zero(scale)[:, None]) @ whitening.mT
        return white @ white.mT / self.masks

    def predictive_variance(self, z: Tensor) -> Tensor:
        """m(x), (batch, outputs): how far gradients lie outside those of the known inputs."""
        return self.covariance(z).diagonal(dim1=1, dim2=2)

    def check_multipliers(self, count: int) -> None:
        """An error for another network: sketches of both have one size, and would go unnoticed."""
        if count != self.masks:
            raise ValueError(
                f"The posterior was fitted with {self.masks} multipliers, but this network has "
                f"{count} at these inputs; use the network and the input size that it was fitted "
                "on, or fit again."
            )


class Gram:
    """The sum of z z' over batches and outputs, in memory that does not grow with their number.

    Attributes:
        scale: What outputs are divided by, (outputs,).
        count: The number of inputs.
        masks: The number of multipliers.
        total: The sum, (d, d).
    """

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale
        self.count, self.masks = 0, 0
        self.total: Tensor | float = 0.0

    def add(self, z: Tensor) -> None:  # (batch, outputs, multipliers)
        """Adds a batch."""
        flat = sketch(z.double() / self.scale[:, None]).flatten(0, 1) / z.shape[1] ** 0.5
        self.total = self.total + flat.mT @ flat
        self.count, self.masks = self.count + len(z), z.shape[2]


def output_scale(z: Tensor) -> Tensor:  # (batch, outputs, multipliers) -> (outputs,)
    """The root mean square gradient of each output; 1 where all are 0."""
    return one_for_zero(z.double().square().mean((0, 2)).sqrt())


def posterior_of(grams: Sequence[Gram], ridge: float) -> Posterior:
    """The posterior given the inputs of several sums, which have one scale."""
    scale, count = grams[0].scale, sum(gram.count for gram in grams)
    total = sum(gram.total for gram in grams)
    assert isinstance(total, Tensor)
    moment = total / max(1, count)
    size = one_for_zero(moment.diagonal().mean())
    masks = max(gram.masks for gram in grams)
    return Posterior(whiten(moment / size, ridge), scale * size.sqrt(), count, masks)


def whiten(moment: Tensor, ridge: float | Tensor) -> Tensor:
    """The inverse of the Cholesky factor of a moment with a ridge."""
    eye = torch.eye(len(moment), dtype=moment.dtype, device=moment.device)
    root = torch.linalg.cholesky(moment + ridge * eye)
    return torch.linalg.solve_triangular(root, eye, upper=False)


def sketch(z: Tensor) -> Tensor:
    """The gradients, or a count sketch of them if there are too many multipliers."""
    return z if z.shape[-1] <= EXACT else count_sketch(z, SKETCHED)


def count_sketch(z: Tensor, size: int) -> Tensor:
    """`size` sums in place of the numbers along the last dimension (Charikar et al. 2002).

    Every number is added, with a random sign, to one of the sums: inner products stay right on
    average.
    """
    with outside_tracing():
        generator = torch.Generator().manual_seed(z.shape[-1])
        bucket = torch.randint(size, (z.shape[-1],), generator=generator)
        sign = 2.0 * torch.randint(2, (z.shape[-1],), generator=generator) - 1
    sums = z.new_zeros(*z.shape[:-1], size)
    return sums.index_add(z.dim() - 1, bucket.to(z.device), z * sign.to(z))


def one_for_zero(scale: Tensor) -> Tensor:
    """The scale to divide by: 1 for an output that no multiplier changes, whose gradients are 0."""
    return torch.where(scale > 0, scale, 1.0)
