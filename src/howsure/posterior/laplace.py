"""The posterior over masks: which directions of the multipliers the known inputs leave open.

One multiplier ("mask") stands at every unit or channel of every layer. Its prior is the same in all
directions; inputs of the kind that the network was trained on say in which of them the predictions
would change. With z(x) the gradient of an output with respect to all d multipliers,

    m(x) = z(x)' (C + ridge I)^-1 z(x) / d,    C = the mean of z z' over known inputs,

where z is scaled so that the diagonal of C has mean 1. This is the linearised Laplace approximation
over multipliers in place of weights: no labels, no Hessian, and d x d numbers however many weights
the network has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.trees import outside_tracing

# Multipliers up to which the matrix is exact: 512 MB in double precision. More are sketched.
EXACT = 8192
SKETCHED = 4096
# Relative to the mean of the diagonal; the larger one where the inputs are few held-out ones.
RIDGE, RIDGE_OF_FEW = 0.01, 0.1


@dataclass(frozen=True, eq=False)
class MaskPosterior:
    """A Gaussian over the multipliers.

    Attributes:
        whitening: Inverse of the precision's Cholesky factor, (d, d), or of that of its sketch.
        scale: Root mean square of the gradients of each output, (outputs,).
        count: How many inputs it was made from.
        masks: How many multipliers there are.
    """

    whitening: Tensor
    scale: Tensor
    count: int
    masks: int

    def covariance(self, z: Tensor) -> Tensor:  # (rows, outputs, masks) -> (rows, outputs, outputs)
        """What the masks leave open, for all outputs: m is the diagonal."""
        self.check_masks(z.shape[2])
        scale, whitening = (each.to(z.device) for each in (self.scale, self.whitening))
        white = sketched(z.double() / _positive(scale)[:, None]) @ whitening.mT
        return white @ white.mT / self.masks

    def check_masks(self, masks: int) -> None:
        """An error for another network: sketches of both have one size, and would go unnoticed."""
        if masks != self.masks:
            raise ValueError(
                f"What `fit` found is about {self.masks} masks, and this network has {masks} at "
                "these inputs; use it with the network and the input size that it was fitted on, "
                "or fit again."
            )

    def m(self, z: Tensor) -> Tensor:  # (rows, outputs, masks) -> (rows, outputs)
        """How far an input's gradients lie outside those of the known inputs."""
        return self.covariance(z).diagonal(dim1=1, dim2=2)


class Gram:
    """Sums of z z' over batches and outputs, in memory that does not grow with their number."""

    def __init__(self, scale: Tensor | None = None) -> None:
        """Starts empty; outputs are scaled alike by `scale`, or by what the first batch shows."""
        self.scale = scale
        self.count, self.masks = 0, 0
        self.total: Tensor | None = None  # (d, d)

    def add(self, z: Tensor) -> None:  # (rows, outputs, masks)
        """One more batch."""
        wide = z.double()
        if self.scale is None:
            self.scale = _positive(wide.square().mean((0, 2)).sqrt())
        flat = sketched(wide / self.scale[:, None]).flatten(0, 1) / z.shape[1] ** 0.5
        more = flat.mT @ flat
        self.total = more if self.total is None else self.total + more
        self.count, self.masks = self.count + len(z), z.shape[2]

    def __add__(self, other: Gram) -> Gram:
        """The sums of both, which have one scale."""
        both = Gram(self.scale)
        both.count, both.masks = self.count + other.count, max(self.masks, other.masks)
        known = [each.total for each in (self, other) if each.total is not None]
        both.total = sum(known[1:], known[0]) if known else None
        return both

    def posterior(self, ridge: float) -> MaskPosterior:
        """The posterior that these inputs give."""
        assert self.total is not None and self.scale is not None
        each = self.total / max(1, self.count)
        size = _positive(each.diagonal().mean())
        eye = torch.eye(len(each), dtype=each.dtype, device=each.device)
        root = torch.linalg.cholesky(each / size + ridge * eye)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False)
        return MaskPosterior(whitening, self.scale * size.sqrt(), self.count, self.masks)


def gram_of(batches: Iterable[Tensor]) -> Gram:
    """The sums over all batches, (rows, outputs, masks) each."""
    total = Gram()
    for z in batches:
        total.add(z)
    return total


def sketched(z: Tensor) -> Tensor:
    """The gradients, or where there are too many a count sketch of them."""
    return z if z.shape[-1] <= EXACT else count_sketch(z, SKETCHED)


def count_sketch(z: Tensor, size: int) -> Tensor:
    """So many sums in place of the numbers along the last axis (Charikar et al. 2002).

    Every number is added, with a random sign, to one of the sums: inner products stay right on
    average.
    """
    with outside_tracing():
        generator = torch.Generator().manual_seed(z.shape[-1])
        place = torch.randint(size, (z.shape[-1],), generator=generator)
        sign = 2.0 * torch.randint(2, (z.shape[-1],), generator=generator) - 1
    sums = z.new_zeros(*z.shape[:-1], size)
    return sums.index_add(z.dim() - 1, place.to(z.device), z * sign.to(z))


def _positive(scale: Tensor) -> Tensor:
    """With 1 in place of 0: an output that no mask moves has no gradients to scale."""
    return torch.where(scale > 0, scale, 1.0)
