"""How far an input lies from the known ones, by its numbers and by activations in the network.

Gradients vanish where units are dead or an output saturates; distances do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.posterior.laplace import count_sketch

NEIGHBOR = 6
# Wider activations are sketched: a layer takes at most half a megabyte, ...
MOST_NUMBERS = 256
# ... and the neighbors, with at most so many of them, drawn at random from all known inputs, 32.
MOST_FEATURES, MOST_NEIGHBORS = 1024, 8192
_OTHER_MODEL = (
    "The layer `{name}`, which `fit` recorded, {what}: this is another model, or it took "
    "another path. Fit again, or wrap the model that was fitted."
)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are, to be saved."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


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
        mean, whitening = self.mean.to(inputs), self.whitening.to(inputs)
        return ((narrow(inputs, MOST_NUMBERS) - mean) @ whitening.mT).square().mean(1)


@dataclass(frozen=True, eq=False)
class Distances:
    """The known inputs, as seen from inside the network.

    Attributes:
        layers: What goes into the layers.
        head: The layer that makes the outputs; `None` if there is none.
        neighbors: Its normalized inputs for known inputs, (known, features).
        count: How many inputs are known.
    """

    layers: tuple[LayerGaussian, ...]
    head: str | None
    neighbors: Tensor | None
    count: int

    @property
    def wanted(self) -> tuple[str, ...]:
        """The layers whose inputs have to be read."""
        names = [layer.name for layer in self.layers]
        return tuple(dict.fromkeys([*names, *([] if self.head is None else [self.head])]))

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and text, to be saved."""
        return {**fields_of(self), "layers": [fields_of(layer) for layer in self.layers]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Distances:
        """What `state` gave."""
        layers = tuple(LayerGaussian(**layer) for layer in state["layers"])
        return cls(**{**state, "layers": layers})

    def logs(self, inputs: Mapping[str, Tensor], rows: int) -> Tensor:  # (rows, 2)
        """Log squared distances to a neighbor and over the layers, in double precision.

        0 where there is no such distance.

        Args:
            inputs: What goes into the layers, (rows, features) each.
            rows: How many rows there are.
        """
        to_neighbor = over_layers = None
        if self.head is not None and self.neighbors is not None:
            features = _input_of(self.head, inputs, rows, self.neighbors.shape[1], MOST_FEATURES)
            known = self.neighbors.to(features.device).double()
            squared = 2 - 2 * direction(features) @ known.mT
            to_neighbor = squared.topk(NEIGHBOR, 1, largest=False).values[:, -1]
        if self.layers:
            distances = [
                layer.squared_distance(
                    _input_of(layer.name, inputs, rows, len(layer.mean), MOST_NUMBERS)
                )
                for layer in self.layers
            ]
            over_layers = torch.stack(distances).mean(0)
        smallest = torch.finfo(torch.float32).tiny  # protects the log of an input that is known
        known = [distance for distance in (to_neighbor, over_layers) if distance is not None]
        nothing = torch.ones_like(known[0]) if known else torch.ones(rows, dtype=torch.float64)
        both = [nothing if d is None else d for d in (to_neighbor, over_layers)]
        return torch.stack([distance.clamp(min=smallest).log() for distance in both], 1)


def _input_of(name: str, inputs: Mapping[str, Tensor], rows: int, width: int, most: int) -> Tensor:
    """What goes into a layer; an error if another model has not reached it, or not like this."""
    activation = inputs.get(name)
    if activation is None or len(activation) != rows:
        raise ValueError(_OTHER_MODEL.format(name=name, what="was not reached"))
    if min(activation.shape[1], most) != width:
        raise ValueError(_OTHER_MODEL.format(name=name, what="has another width"))
    return activation.double()


def narrow(inputs: Tensor, most: int) -> Tensor:
    """The activations, or a count sketch of them where they are wider than that."""
    return inputs if inputs.shape[1] <= most else count_sketch(inputs, most)


def direction(inputs: Tensor) -> Tensor:
    """The activations, sketched where they are wide, with length 1."""
    return F.normalize(narrow(inputs, MOST_FEATURES), dim=1)


class KnownActivations:
    """Sums and neighbors over batches, in memory that does not grow with their number.

    Attributes:
        layers: The layers with a Gaussian.
        head: The layer with neighbors; `None` if there is none.
        centers: Where the sums are about, for every layer: near the mean, so that little is lost
            by subtracting it, and the same for all folds.
        count: How many inputs.
        sums: For every layer the number of inputs, their sum and that of their products.
        features: Normalized inputs of the head, (known, features).
        keys: Random numbers; the inputs with the smallest are kept.
    """

    def __init__(
        self, layers: Sequence[str], head: str | None, centers: Mapping[str, Tensor]
    ) -> None:
        self.layers, self.head, self.centers = layers, head, centers
        self.count = 0
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        self.features: Tensor | None = None
        self.keys = torch.zeros(0)

    @staticmethod
    def center(inputs: Mapping[str, Tensor], layers: Sequence[str]) -> dict[str, Tensor]:
        """The means of a batch."""
        return {n: narrow(inputs[n].double(), MOST_NUMBERS).mean(0) for n in layers}

    def add(self, inputs: Mapping[str, Tensor], rows: Tensor, generator: torch.Generator) -> None:
        """The activations of some rows of a batch."""
        for name in self.layers:
            away = narrow(inputs[name][rows].double(), MOST_NUMBERS) - self.centers[name]
            self._add_sums(name, away.sum(0), away.mT @ away)
        self.count += len(rows)
        if self.head is not None:
            features = direction(inputs[self.head][rows].double()).float()
            self._keep(features, torch.rand(len(rows), generator=generator))

    def _add_sums(self, name: str, total: Tensor, products: Tensor) -> None:
        before = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = before[0] + total, before[1] + products

    def _keep(self, features: Tensor, keys: Tensor) -> None:
        known = [features] if self.features is None else [self.features, features]
        self.features, self.keys = torch.cat(known), torch.cat([self.keys, keys])
        if len(self.keys) > MOST_NEIGHBORS:
            kept = self.keys.topk(MOST_NEIGHBORS, largest=False).indices
            self.features, self.keys = self.features[kept.to(features.device)], self.keys[kept]

    def __add__(self, other: KnownActivations) -> KnownActivations:
        """The known inputs of both, which have the same centers."""
        both = KnownActivations(self.layers, self.head, self.centers)
        for part in (self, other):
            both.count += part.count
            for name, sums in part.sums.items():
                both._add_sums(name, *sums)
            if part.features is not None:
                both._keep(part.features, part.keys)
        return both

    def distances(self, ridge: float) -> Distances:
        """What is kept for predictions."""
        layers = tuple(self._gaussian(name, ridge) for name in self.layers)
        return Distances(layers, self.head, self.features, self.count)

    def _gaussian(self, name: str, ridge: float) -> LayerGaussian:
        """Mean and whitening; the ridge is relative to the mean variance."""
        total, products = self.sums[name]
        away = total / self.count
        covariance = products / self.count - torch.outer(away, away)
        size = covariance.diagonal().mean()
        size = torch.where(size > 0, size, 1.0)
        eye = torch.eye(len(away), dtype=away.dtype, device=away.device)
        root = torch.linalg.cholesky(covariance + ridge * size * eye)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False)
        # In the usual order of memory, which exported files can hold.
        return LayerGaussian(name, self.centers[name] + away, whitening.contiguous())


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
