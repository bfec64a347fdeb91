"""What the variance of a prediction is made of, and the known inputs that give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.posterior.cross_fit import CrossFit
from howsure.posterior.distances import Distances, InputRange
from howsure.posterior.laplace import Posterior
from howsure.posterior.local_error import Kernel, LocalError


@dataclass(frozen=True, eq=False)
class Scores:
    """What the variance of some predictions is made of, in double precision.

    Attributes:
        mean: The predictions, (batch, outputs).
        data: Their variance from the noise of the sensor, (batch, outputs).
        m: Their predictive variance from the posterior, (batch, outputs); 0 without one.
        distances: Squared distances D to a neighbor and L over the layers, (batch, 2); 0 without.
        beyond: Squared distance from the middle of the known range, 1 at twice the range, (batch,).
        local: The error near each input, (batch, outputs); 0 without labeled training data.
        nearest: Squared distance of the nearest training sample, (batch, 1); 0 likewise.
        kernel: Variance of a Gaussian process between known inputs, (batch,); 0 without.
    """

    mean: Tensor
    data: Tensor
    m: Tensor
    distances: Tensor
    beyond: Tensor
    local: Tensor
    nearest: Tensor
    kernel: Tensor

    @classmethod
    def of(cls, mean: Tensor, data: Tensor) -> Scores:
        """Those of predictions of which nothing else is known: 0."""
        mean, data = mean.double(), data.double()
        zeros, nothing = torch.zeros_like(mean), mean.new_zeros(len(mean))
        pairs, nearest = mean.new_zeros(len(mean), 2), nothing[:, None]
        return cls(mean, data, zeros, pairs, nothing, zeros, nearest, nothing)


@dataclass(frozen=True, eq=False)
class Known:
    """The known inputs, for new inputs and for held-out ones that have taken part in them.

    Attributes:
        posterior: The posterior over multipliers; `None` if there is none.
        distances: Distances inside the network; `None` if there are none.
        input_range: The range of the inputs; `None` if the model part is left out.
        kernel: Those of a table as points of a Gaussian process; `None` if there are none.
        local_error: By labeled training rows, where there were any.
        count: The number of known inputs.
        note: Why there is no posterior, or nothing.
    """

    posterior: CrossFit[Posterior] | None = None
    distances: CrossFit[Distances] | None = None
    input_range: InputRange | None = None
    kernel: Kernel | None = None
    local_error: LocalError | None = None
    count: int = 0
    note: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers whose inputs have to be read."""
        return () if self.distances is None else self.distances.whole.wanted

    @property
    def is_cross_fitted(self) -> bool:
        """Whether the known inputs are the held-out ones, in folds."""
        fits = (self.posterior, self.distances)
        return any(fit is not None and fit.folds is not None for fit in fits)


def log_distances(
    known: CrossFit[Distances], activations: Mapping[str, Tensor], rows: int, number: int
) -> Tensor:
    """The log distances of a batch, each row by known inputs of which it is none, (rows, 2)."""

    def of_some(distances: Distances, some: Tensor | slice) -> Tensor:
        chosen = {name: activations[name][some] for name in activations}
        return distances.logs(chosen, rows if isinstance(some, slice) else len(some))

    return known.score(rows, number, of_some)
