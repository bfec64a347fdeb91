"""How far an input lies from the known ones, by its numbers and by activations in the network.

Gradients vanish where units are dead or an output saturates; distances do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.posterior.laplace import count_sketch, one_for_zero, whiten

NEIGHBOR = 6
# Wider activations are sketched: a layer takes at most half a megabyte, ...
MOST_NUMBERS = 256
# ... and the neighbors, with at most so many of them, drawn at random from all known inputs, 32.
MOST_FEATURES, MOST_NEIGHBORS = 1024, 8192
_OTHER_MODEL = (
    "The layer `{name}`, which `fit` recorded, {what}: this is another model, or it took "
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

    def logs(self, inputs: Mapping[str, Tensor], rows: int) -> Tensor:  # (rows, 2)
        """Log squared distances to a neighbor and over the layers, in double precision.

        0 where there is no such distance.

        Args:
            inputs: What goes into the layers, (rows, features) each.
            rows: How many rows there are.
        """
        by_kind: dict[int, Tensor] = {}
        if self.head is not None and self.neighbors is not None:
            features = _input_of(self.head, inputs, rows, self.neighbors.shape[1], MOST_FEATURES)
            known = self.neighbors.to(features.device).double()
            squared = 2 - 2 * direction(features) @ known.mT
            by_kind[0] = squared.topk(NEIGHBOR, 1, largest=False).values[:, -1]
        if self.layers:
            distances = [
                layer.squared_distance(
                    _input_of(layer.name, inputs, rows, len(layer.mean), MOST_NUMBERS)
                )
                for layer in self.layers
            ]
            by_kind[1] = torch.stack(distances).mean(0)
        smallest = torch.finfo(torch.float32).tiny  # protects the log of an input that is known
        like = next(iter(by_kind.values()), torch.ones(rows, dtype=torch.float64))
        both = torch.stack([by_kind.get(k, torch.ones_like(like)) for k in range(2)], 1)
        return both.clamp(min=smallest).log()


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
        head: The layer with neighbors; `None` if there is none.
        centers: For every layer with a Gaussian where its sums are about: near the mean, so that
            little is lost by subtracting it, and the same for all folds.
        count: How many inputs.
        totals: For every layer the sum over the inputs.
        products: For every layer the sum of their products.
        features: Normalized inputs of the head, (known, features).
        keys: Random numbers; the inputs with the smallest are kept.
    """

    def __init__(
        self, layers: Sequence[str], head: str | None, first: Mapping[str, Tensor]
    ) -> None:
        """The sums are about the means of the `first` batch."""
        self.head, self.count = head, 0
        self.centers = {n: narrow(first[n].double(), MOST_NUMBERS).mean(0) for n in layers}
        self.totals = {n: torch.zeros_like(c) for n, c in self.centers.items()}
        self.products = {n: torch.outer(t, t) for n, t in self.totals.items()}
        self.features = None if head is None else direction(first[head][:0].double()).float()
        self.keys = torch.zeros(0)

    def add(self, inputs: Mapping[str, Tensor], rows: Tensor, generator: torch.Generator) -> None:
        """The activations of some rows of a batch."""
        self.count += len(rows)
        for name, center in self.centers.items():
            away = narrow(inputs[name][rows].double(), MOST_NUMBERS) - center
            self.totals[name] += away.sum(0)
            self.products[name] += away.mT @ away
        if self.head is not None and self.features is not None:
            features = direction(inputs[self.head][rows].double()).float()
            keys = torch.cat([self.keys, torch.rand(len(rows), generator=generator)])
            self.features, self.keys = _some(torch.cat([self.features, features]), keys)


def distances_of(parts: Sequence[KnownActivations], ridge: float) -> Distances:
    """What is kept for predictions of several sums; the ridge is relative to the mean variance."""
    count, layers = sum(part.count for part in parts), []
    for name, center in parts[0].centers.items():
        away = torch.stack([part.totals[name] for part in parts]).sum(0) / count
        products = torch.stack([part.products[name] for part in parts]).sum(0)
        covariance = products / count - torch.outer(away, away)
        whitening = whiten(covariance, ridge * one_for_zero(covariance.diagonal().mean()))
        # In the usual order of memory, which exported files can hold.
        layers.append(LayerGaussian(name, center + away, whitening.contiguous()))
    features = [part.features for part in parts if part.features is not None]
    neighbors = None
    if features:
        neighbors, _ = _some(torch.cat(features), torch.cat([part.keys for part in parts]))
    return Distances(tuple(layers), parts[0].head, neighbors, count)


def _some(features: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """At most `MOST_NEIGHBORS` inputs, those with the smallest keys."""
    if len(keys) <= MOST_NEIGHBORS:
        return features, keys
    kept = keys.topk(MOST_NEIGHBORS, largest=False).indices
    return features[kept.to(features.device)], keys[kept]


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
