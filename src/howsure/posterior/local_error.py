"""The error that the network makes near an input: squared training residuals of its neighbours.

    local(x) = (sum_i w_i s_i + typical) / (sum_i w_i + 1),   w_i = exp(-|h(x) - h_i|^2 / 2 width^2)

h is what enters the last linear layer, i goes over the 30 training rows nearest to it, and s_i are
their squared residuals, scaled so that their mean is the error on held-out data: a network fits the
rows that it was trained on too well. The held-out error counts as one more neighbour at distance 0,
so that far from all rows it is what is left. How far the nearest row is says how new an input is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.operations import Operations, base_name

NEIGHBOURS = 30
# Width of the kernel, as a share of the median distance to the last neighbour; chosen on splits of
# tables that are not reported, as was the weight 1 of the held-out error.
_WIDTH = 0.25
# Rows that the width is measured at.
_PROBED = 1000


@dataclass(frozen=True, eq=False)
class Nearby:
    """What the training rows near some inputs say.

    Attributes:
        error: The error near each input, (rows, outputs).
        squared_distance: That of the nearest training row, (rows, 1).
    """

    error: Tensor
    squared_distance: Tensor


@dataclass(frozen=True, eq=False)
class LocalError:
    """Training rows with their errors.

    Attributes:
        features: What enters the last linear layer, (rows, units).
        squared: Squared residuals, scaled to the held-out error, (rows, outputs).
        typical: Mean squared error on held-out data, (outputs,).
        width: Width of the kernel.
    """

    features: Tensor
    squared: Tensor
    typical: Tensor
    width: float

    @classmethod
    def of(cls, features: Tensor, squared: Tensor, typical: Tensor) -> LocalError:
        """From the squared residuals of training rows and the error on held-out data."""
        mean = squared.mean(0)
        # Residuals of 0 everywhere say nothing about where errors are large.
        scaled = torch.where(mean > 0, squared * (typical / mean), typical)
        return cls(features, scaled, typical, _WIDTH * _typical_distance(features))

    def at(self, features: Tensor) -> Nearby:  # (rows, units)
        """The error near inputs with these features, and how far the nearest row is."""
        own, squared, typical = (
            each.to(features.device) for each in (self.features, self.squared, self.typical)
        )
        distance, nearest = _distances(features, own).topk(NEIGHBOURS, 1, largest=False)
        weight = (-0.5 * (distance / self.width).square()).exp()
        total = (weight[:, :, None] * squared[nearest]).sum(1)
        error = (total + typical) / (weight.sum(1, keepdim=True) + 1)
        return Nearby(error, distance[:, :1].square())


def _typical_distance(features: Tensor) -> float:
    """The median distance of a row to the last of its neighbours, not 0."""
    probes = features[:: max(1, len(features) // _PROBED)]
    # The nearest row to each is itself.
    found = _distances(probes, features).topk(NEIGHBOURS + 1, 1, largest=False).values
    return max(float(found[:, -1].median()), torch.finfo(torch.float64).tiny)


def _distances(one: Tensor, two: Tensor) -> Tensor:
    """Row by row, so that a row's neighbours do not depend on its batch."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(one.double(), two.double(), compute_mode=mode)


class LastLinear(Operations):
    """Watches a pass for what enters its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features: Tensor | None = None

    def operation(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Runs the operation, and keeps the input of a linear layer."""
        if base_name(func) == "linear":
            self.features = args[0] if args else kwargs["input"]
        return func(*args, **kwargs)

    def rows(self, count: int) -> Tensor:  # (count, units)
        """What was kept: one row of features for each of the inputs; an error if it is not that."""
        found = None if self.features is None else tuple(self.features.shape)
        if self.features is None or len(found or ()) != 2 or self.features.shape[0] != count:
            was = "there is no linear layer" if found is None else f"it has inputs of shape {found}"
            raise ValueError(
                "`train` needs a last linear layer with one row of inputs for each input of the "
                f"model, and {was}; fit without it, with `train_inputs`."
            )
        return self.features.detach()
