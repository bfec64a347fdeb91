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
from torch.nn import functional as F

from howsure.methods.activations import Activations, read
from howsure.posterior.laplace import count_sketch
from howsure.posterior.variance_model import KNOWN, quantiles_of
from howsure.setup import Setup

NEIGHBOUR = 6
# By how much log T grows with each distance, unless it is fitted; also its weight in the novelty.
GROWTH = (0.5, 1.0)
# The quantile of the held-out distances from which the temperature grows where every pixel has
# classes; elsewhere it is the one at which a novelty is 1.
_OF_IMAGES = 0.9
# Wider activations are sketched: a layer takes at most half a megabyte, ...
MOST_NUMBERS = 256
# ... and the neighbours, with at most 8,192 of them, 32 megabytes.
MOST_FEATURES = 1024
_OTHER_MODEL = (
    "The layer `{name}`, which `fit` has looked at, {what}: this is another model, or it took "
    "another path. Fit again, or wrap the model that was fitted."
)


@dataclass(frozen=True, eq=False)
class LayerGaussian:
    """What goes into a layer for known inputs: its mean and the root of its inverse covariance.

    Attributes:
        name: The layer.
        mean: (numbers,).
        whitening: (numbers, numbers).
    """

    name: str
    mean: Tensor
    whitening: Tensor

    def squared_distance(self, inputs: Tensor) -> Tensor:  # (rows, features) -> (rows,)
        """The squared Mahalanobis distance per number: 1 on average for known inputs."""
        mean, whitening = (each.to(inputs) for each in (self.mean, self.whitening))
        return ((narrow(inputs, MOST_NUMBERS) - mean) @ whitening.mT).square().mean(1)


@dataclass(frozen=True, eq=False)
class Distances:
    """The known inputs, as seen from inside the network.

    Attributes:
        layers: What goes into the layers.
        head: The layer that makes the logits; `None` if there is none.
        neighbours: Its normalised inputs for known inputs, (known, features).
        count: How many inputs are known.
    """

    layers: tuple[LayerGaussian, ...]
    head: str | None
    neighbours: Tensor | None
    count: int

    @property
    def wanted(self) -> tuple[str, ...]:
        """The layers whose inputs have to be read."""
        names = [layer.name for layer in self.layers]
        return tuple(dict.fromkeys([*names, *([] if self.head is None else [self.head])]))

    def logs(self, seen: Activations) -> Tensor:  # (rows, 2)
        """u_1 and u_2 of every input, in double precision; 0 where there is no such distance."""
        nothing = seen.logits.new_zeros(len(seen.logits), dtype=torch.float64)
        both = self._to_neighbour(seen), self._over_layers(seen)
        smallest = torch.finfo(torch.float32).tiny  # protects the log of an input that is known
        found = [nothing if each is None else each.clamp(min=smallest).log() for each in both]
        return torch.stack(found, 1)

    def _to_neighbour(self, seen: Activations) -> Tensor | None:
        if self.head is None or self.neighbours is None:
            return None
        features = direction(self._input(seen, self.head))
        if features.shape[1] != self.neighbours.shape[1]:
            raise ValueError(_OTHER_MODEL.format(name=self.head, what="has another width"))
        squared = 2 - 2 * features @ self.neighbours.to(features.device).double().mT
        return squared.topk(NEIGHBOUR, 1, largest=False).values[:, -1]

    def _over_layers(self, seen: Activations) -> Tensor | None:
        if not self.layers:
            return None
        each = []
        for layer in self.layers:
            inputs = self._input(seen, layer.name)
            if min(inputs.shape[1], MOST_NUMBERS) != len(layer.mean):
                raise ValueError(_OTHER_MODEL.format(name=layer.name, what="has another width"))
            each.append(layer.squared_distance(inputs))
        return torch.stack(each).mean(0)

    @staticmethod
    def _input(seen: Activations, name: str) -> Tensor:
        found = seen.inputs.get(name)
        if found is None or len(found) != len(seen.logits):
            raise ValueError(_OTHER_MODEL.format(name=name, what="was not reached"))
        return found.double()


def narrow(inputs: Tensor, most: int) -> Tensor:
    """The activations, or a count sketch of them where they are wider than that."""
    return inputs if inputs.shape[1] <= most else count_sketch(inputs, most)


def direction(inputs: Tensor) -> Tensor:
    """The activations, sketched where they are wide, with length 1."""
    return F.normalize(narrow(inputs, MOST_FEATURES), dim=1)


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
