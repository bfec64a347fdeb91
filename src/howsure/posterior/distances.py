"""How far an input lies from the known ones, by its numbers and by activations in the network.

Gradients vanish where units are dead or an output saturates; distances do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.posterior.laplace import count_sketch

if TYPE_CHECKING:
    from howsure.methods.activations import Activations

NEIGHBOUR = 6
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
class InputRange:
    """The range of the numbers that summarize the known inputs; its fields are saved.

    Attributes:
        center: The middle of the range, (numbers,).
        reach: How far from the middle the known inputs lie, (numbers,); above 0.
    """

    center: Tensor
    reach: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> InputRange:
        """From the smallest and the largest of every number."""
        is_known = low <= high  # and not NaN, nor empty
        low, high = torch.where(is_known, low, -math.inf), torch.where(is_known, high, math.inf)
        center = torch.where(is_known, (low + high) / 2, 0.0)
        reach = (high - low) / 2
        varying = reach[reach > 0]
        usual = float(varying.median()) if len(varying) else 1.0
        # A number that never changes may move by what others do, or by what its size allows.
        constant = torch.where(center != 0, center.abs(), usual)
        return cls(center, torch.where(reach > 0, reach, constant))

    def distance(self, summary: Tensor) -> Tensor:  # (batch, numbers) -> (batch,)
        """The largest squared distance from the middle: 1 at twice the known range."""
        if summary.shape[1] != len(self.center):
            raise ValueError(
                f"The inputs have {summary.shape[1]} numbers to compare with the known range, and "
                f"`fit` has seen {len(self.center)}; use inputs of the same shape, or fit again."
            )
        center, reach = (tensor.to(summary.device) for tensor in (self.center, self.reach))
        if not summary.shape[1]:
            return summary.new_zeros(len(summary))
        # What is NaN has no place in the range; the model takes it, or returns NaN itself.
        return ((summary - center) / (2 * reach)).nan_to_num(nan=0.0).square().amax(1)
