"""A temperature for every input, from its distances to the inputs that the network knows.

    log T = log T0 + growth_1 (u_1 - q_1)_+ + growth_2 (u_2 - q_2)_+

T0 is best for held-out data. u_1 is the log squared distance to the 6th neighbour among the known
inputs, by the normalised input of the last layer; u_2 the log of the squared Mahalanobis distance
of what goes into each layer, averaged over places, per number and over layers. Of the layers with
places the first half is left out: its averages are colours and brightness. q is the 75 % quantile
of u on held-out inputs: known ones keep T0, others get probabilities that are less sure.
Where every pixel has classes of its own, all pixels of an image have its temperature, by the
distance over all layers, and q is the 90 % quantile.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.methods.activations import read
from howsure.posterior.distances import Distances, LayerGaussian
from howsure.posterior.variance_model import KNOWN, quantiles_of
from howsure.setup import Setup

# By how much log T grows with each distance, unless it is fitted; also its weight in the novelty.
GROWTH = (0.5, 1.0)
# The quantile of the held-out distances from which the temperature grows where every pixel has
# classes; elsewhere it is the one at which a novelty is 1.
_OF_IMAGES = 0.9


@dataclass(frozen=True, eq=False)
class TemperatureModel:
    """What `fit` found for classes.

    Attributes:
        temperature: T0, for inputs like the known ones.
        classes: How many there are.
        distances: The known inputs; `None` if the temperature is the same for all.
        growth: How fast log T grows with either distance.
        thresholds: The distances from which it grows, (2,).
        known: The held-out quantile of their weighted sum that is a novelty of 1.
        quantiles: Of the held-out inputs' novelty in equal steps, (`masks.novelty.QUANTILES`,).
        notes: What a user should know about it.
        dense: Whether every pixel has classes of its own.
    """

    temperature: float
    classes: int
    distances: Distances | None
    growth: tuple[float, float]
    thresholds: Tensor
    known: float
    quantiles: Tensor
    notes: tuple[str, ...] = ()
    dense: bool = False

    @property
    def grows_from(self) -> float:
        """The quantile of the held-out distances from which it grows."""
        return grows_from(dense=self.dense)

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Of the held-out inputs' novelty, for a gate; `None` without distances."""
        return None if self.distances is None else self.quantiles

    def at(self, logs: Tensor) -> Tensor:  # (rows, 2) -> (rows,)
        """The temperature for inputs at these distances."""
        beyond = (logs - self.thresholds.to(logs)).clamp(min=0)
        return self.temperature * (beyond @ logs.new_tensor(self.growth)).exp()

    def novelty(self, logs: Tensor) -> Tensor:  # (rows, 2) -> (rows,)
        """The weighted product of the distances; above 1 for a quarter of the held-out inputs."""
        return (weighted(logs) - self.known).exp()

    def judged(self, setup: Setup, x: Any) -> Judged:
        """Logits, temperature and novelty of some inputs, by one plain pass."""
        seen = read(setup, x, () if self.distances is None else self.distances.wanted)
        if seen.logits.shape[1] != self.classes:
            raise ValueError(
                f"The model returns {seen.logits.shape[1]} logits, and the temperature was fitted "
                f"for {self.classes} classes; fit again."
            )
        if self.distances is None:
            constant = seen.logits.new_full((len(seen.logits),), self.temperature)
            return Judged(seen.logits, constant, None, self.notes)
        logs = self.distances.logs(seen)
        dtype = seen.logits.dtype if seen.logits.dtype == torch.float64 else torch.float32
        found = self.at(logs).to(dtype), self.novelty(logs).to(dtype)
        return Judged(seen.logits, *found, self.notes)

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and text, to be saved."""
        own = {**_table(self), "growth": list(self.growth), "notes": list(self.notes)}
        if self.distances is not None:
            layers = [_table(layer) for layer in self.distances.layers]
            own["distances"] = {**_table(self.distances), "layers": layers}
        return own

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TemperatureModel:
        """What `state` gave."""
        own = {**state, "growth": tuple(state["growth"]), "notes": tuple(state["notes"])}
        if own["distances"] is not None:
            layers = tuple(LayerGaussian(**each) for each in own["distances"]["layers"])
            own["distances"] = Distances(**{**own["distances"], "layers": layers})
        return cls(**own)


@dataclass(frozen=True, eq=False)
class Judged:
    """Some inputs with their temperature.

    Attributes:
        logits: What the network says, (rows, classes) or (rows, classes, height, width).
        temperature: (rows,).
        novelty: (rows,); `None` if nothing is known about distances.
        notes: What a user should know.
    """

    logits: Tensor
    temperature: Tensor
    novelty: Tensor | None
    notes: tuple[str, ...]

    def cooled(self, logits: Tensor) -> Tensor:  # (points * rows, classes, ...)
        """Logits at one or several points divided by the temperature of their input."""
        points = len(logits) // max(1, len(self.temperature))
        t = self.temperature.to(logits).repeat(points)
        return logits / t.reshape(-1, *(1,) * (logits.dim() - 1))


def grows_from(*, dense: bool) -> float:
    """The quantile of the held-out distances from which the temperature grows."""
    return _OF_IMAGES if dense else KNOWN


def weighted(logs: Tensor) -> Tensor:  # (rows, 2) -> (rows,)
    """The sum of the log distances by which inputs are ranked; it needs no fit."""
    return logs @ logs.new_tensor(GROWTH)


def quantiles_of_novelty(logs: Tensor, level: float) -> tuple[float, Tensor]:
    """The quantile of the held-out inputs that is a novelty of 1, and all quantiles."""
    score = weighted(logs)
    known = float(score.quantile(level))
    return known, (quantiles_of(score) - known).exp()


def _table(value: TemperatureModel | Distances | LayerGaussian) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}
