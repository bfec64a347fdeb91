"""The error that the network makes near an input, from squared residuals of training data.

    local(x) = (sum_i w_i s_i + typical) / (sum_i w_i + 1),   w_i = exp(-|h(x) - h_i|^2 / 2 width^2)

h are the features that enter the last linear layer, i runs over the 30 nearest training samples,
and s_i are their squared residuals, scaled so that their mean is the error on held-out data: a
network fits the samples that it was trained on too well. The held-out error counts as one more
neighbor at distance 0, so that it remains far from all samples. The distance of the nearest sample
measures how novel an input is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEIGHBORS = 30
# Width of the kernel, as a share of the median distance to the last neighbor; chosen on splits of
# tables that are not reported, as was the weight 1 of the held-out error.
_WIDTH = 0.25
# Samples that the width is measured at.
_PROBES = 1000
# Known inputs near one that the Gaussian process looks at, and the share of it that is noise.
_POINTS = 20
_JITTER = 1e-3


@dataclass(frozen=True, eq=False)
class LocalError:
    """Training samples with their errors; its fields are saved under these names.

    Attributes:
        features: The inputs of the last linear layer, (samples, features).
        squared: Squared residuals, scaled to the held-out error, (samples, outputs).
        typical: Mean squared error on held-out data, (outputs,).
        width: Width of the kernel.
    """

    features: Tensor
    squared: Tensor
    typical: Tensor
    width: float

    @classmethod
    def of(cls, features: Tensor, squared: Tensor, typical: Tensor) -> LocalError:
        """From the squared residuals of training samples and the error on held-out data."""
        mean = squared.mean(0)
        # Residuals of 0 everywhere do not show where errors are large.
        scaled = torch.where(mean > 0, squared * (typical / mean), typical)
        return cls(features, scaled, typical, _WIDTH * _distance_to_last_neighbor(features))

    def at(self, features: Tensor) -> tuple[Tensor, Tensor]:  # (batch, outputs), (batch, 1)
        """The error near inputs, and the squared distance of the nearest training sample.

        `features` are theirs, (batch, features).
        """
        known, squared, typical = (
            tensor.to(features.device) for tensor in (self.features, self.squared, self.typical)
        )
        distance, nearest = _distances(features, known).topk(NEIGHBORS, 1, largest=False)
        weight = (-0.5 * (distance / self.width).square()).exp()
        total = (weight[:, :, None] * squared[nearest]).sum(1)
        error = (total + typical) / (weight.sum(1, keepdim=True) + 1)
        return error, distance[:, :1].square()


@dataclass(frozen=True, eq=False)
class Kernel:
    """Known inputs of a table as points of a Gaussian process; its fields are saved.

    Attributes:
        features: The inputs of the last layer, (samples, features).
        width: Width of the kernel: the median distance to the 30th neighbor.
    """

    features: Tensor
    width: float

    @classmethod
    def of(cls, features: Tensor) -> Kernel:
        """From the features of known inputs."""
        return cls(features, _distance_to_last_neighbor(features))

    def variance(self, features: Tensor) -> Tensor:  # (batch, features) -> (batch,)
        """G = 1 - k' (K + 1e-3 I)^-1 k, over the nearest known inputs: 0 at them, 1 far away."""
        known, count = self.features.to(features.device), min(_POINTS, len(self.features))
        distance, nearest = _distances(features, known).topk(count, 1, largest=False)
        points = known[nearest].double()
        between = (points[:, :, None] - points[:, None]).square().sum(3)
        covariance = (-0.5 * between / self.width**2).exp()
        covariance = covariance + _JITTER * torch.eye(count).to(covariance)
        k = (-0.5 * (distance / self.width).square()).exp()[:, :, None]
        explained = (k.mT @ torch.linalg.solve(covariance, k)).flatten()
        return (1 - explained).clamp(0, 1)


def _distance_to_last_neighbor(features: Tensor) -> float:
    """The median over some samples; above 0."""
    probes = features[:: max(1, len(features) // _PROBES)]
    count = min(NEIGHBORS + 1, len(features))  # The nearest sample to each is itself.
    farthest = _distances(probes, features).topk(count, 1, largest=False).values[:, -1]
    return max(float(farthest.median()), torch.finfo(torch.float64).tiny)


def _distances(one: Tensor, two: Tensor) -> Tensor:
    """Euclidean distances without a matrix product, whose rounding depends on the batch."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(one.double(), two.double(), compute_mode=mode)
