"""Known inputs as seen from inside a network: what `fit` keeps of them for the distances.

They are unlabelled inputs of the kind that the network was trained on, or, where there are none,
the held-out inputs in folds: no input is judged by distances to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.fit.folds import FEWEST, FOLDS, Batches, CrossFit, folds_of
from howsure.fit.inputs import check_finite, unseen_inputs
from howsure.fit.options import KnownOptions
from howsure.methods.activations import Activations, read
from howsure.posterior.distances import (
    MOST_NUMBERS,
    Distances,
    LayerGaussian,
    direction,
    narrow,
)
from howsure.posterior.laplace import RIDGE, RIDGE_OF_FEW
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import map_leaves

# Neighbours that are kept, drawn at random from all known inputs.
MOST_NEIGHBOURS = 8192
# Layers that are looked at, spread evenly over those that the network has.
MOST_LAYERS = 32


class NoDistancesError(ValueError):
    """Inputs have no distances of their own, for the reason given."""


@dataclass(frozen=True, eq=False)
class Watched:
    """The layers whose inputs are looked at.

    Attributes:
        layers: Those that have a row for every input.
        head: The one that makes the logits; `None` if there is none.
        notes: What a user should know about them.
    """

    layers: tuple[str, ...]
    head: str | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, setup: Setup, x: object, look: Callable[[Setup, Any], Activations] = read
    ) -> Watched:
        """The layers of a model, found by a pass with all inputs of a batch and one with fewer.

        A layer counts if it says the same about an input whatever the others are: then it has a
        row for every input, and no other axis that happens to be as long.
        """
        seen = look(setup, x)
        rows = len(seen.logits)
        kept = slice(0, rows - 1) if rows > 1 else torch.zeros(2, dtype=torch.long)
        try:
            fewer = look(setup, _rows(x, kept, setup.batch_dim or 0))
        except Exception as error:  # A model for its own batch size can fail in any way.
            raise NoDistancesError(ROWS_MIX) from error
        if not _same(seen.logits[kept], fewer.logits):
            raise NoDistancesError(ROWS_MIX)
        names = [n for n, each in seen.inputs.items() if _same(each[kept], fewer.inputs.get(n))]
        if not names:
            return cls((), None, (NO_LAYERS,))
        if seen.logits.dim() > 2:  # Neighbours of an image as a whole say little about its pixels.
            return cls(_spread(names), None)
        head = _head(seen, names)
        return cls(_spread(_later(names, seen.averaged)), head, () if head else (NO_HEAD,))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.layers, *([] if self.head is None else [self.head]))


ROWS_MIX = "the rows of a batch influence each other"
NO_LAYERS = (
    "The temperature is the same for all inputs: the model has no layers that can be looked into."
)
NO_HEAD = (
    "The temperature depends on the Mahalanobis distance alone: no linear layer or 1 x 1 "
    "convolution makes the logits, so that there are no neighbours."
)


def _rows(x: object, kept: slice | Tensor, axis: int) -> object:
    """Some rows of an input."""

    def choose(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or leaf.dim() <= axis:
            return leaf
        return leaf.movedim(axis, 0)[kept].movedim(0, axis)

    return map_leaves(choose, x)


def _same(one: Tensor, two: Tensor | None) -> bool:
    """Whether two sets of rows are equal but for the rounding of other batch sizes."""
    if two is None or one.shape != two.shape:
        return False
    scale = float(one.abs().max()) if one.numel() else 0.0
    return bool(torch.allclose(one, two, rtol=1e-2, atol=1e-3 * scale))


def _later(names: Sequence[str], averaged: Collection[str]) -> list[str]:
    """The layers without the first half of those whose input is an average over places.

    Early averages are colours and brightness, which change without any harm to the classes.
    """
    early = [name for name in names if name in averaged]
    return [name for name in names if name not in early[: len(early) // 2]]


def _spread(names: Sequence[str]) -> tuple[str, ...]:
    """At most `MOST_LAYERS` of them, spread evenly."""
    chosen = torch.linspace(0, len(names) - 1, min(len(names), MOST_LAYERS)).round()
    return tuple(names[int(k)] for k in chosen)


def _head(seen: Activations, names: Sequence[str]) -> str | None:
    """The last layer whose output are the logits; else the last with as many outputs."""
    wide = {n: out for n, out in seen.outputs.items() if n in names}
    logits = seen.logits.reshape(len(seen.logits), -1)
    fitting = [n for n, out in wide.items() if out.shape == logits.shape]
    exact = [n for n in fitting if _same(wide[n], logits.to(wide[n]))]
    return next(reversed(exact or fitting), None)


class Gathered:
    """Sums and neighbours over batches, in memory that does not grow with their number."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.count = 0
        self.sums: dict[str, LayerSums] = {}
        self.features: Tensor | None = None  # (known, features), normalised
        self.keys = torch.zeros(0)  # Those with the smallest random keys are kept.

    def add(
        self, seen: Activations, centres: dict[str, Tensor], generator: torch.Generator
    ) -> None:
        """One more batch; sums are about the same centres in all of them."""
        for name in self.watched.layers:
            own = narrow(seen.inputs[name].double(), MOST_NUMBERS)
            more = LayerSums.of(own, centres[name])
            self.sums[name] = self.sums[name] + more if name in self.sums else more
        self.count += len(seen.logits)
        if self.watched.head is None:
            return
        new = direction(seen.inputs[self.watched.head].double()).float()
        self._keep(new, torch.rand(len(new), generator=generator))

    def _keep(self, features: Tensor, keys: Tensor) -> None:
        known = [features] if self.features is None else [self.features, features]
        every, all_keys = torch.cat(known), torch.cat([self.keys, keys])
        if len(every) > MOST_NEIGHBOURS:
            kept = all_keys.topk(MOST_NEIGHBOURS, largest=False).indices
            every, all_keys = every[kept.to(every.device)], all_keys[kept]
        self.features, self.keys = every, all_keys

    @classmethod
    def joined(cls, parts: Sequence[Gathered]) -> Gathered:
        """All of several, which have the same centres."""
        both = cls(parts[0].watched)
        for part in parts:
            both.count += part.count
            for name, own in part.sums.items():
                both.sums[name] = both.sums[name] + own if name in both.sums else own
            if part.features is not None:
                both._keep(part.features, part.keys)
        return both

    def distances(self, ridge: float) -> Distances:
        """What is kept for predictions."""
        layers = tuple(self.sums[name].gaussian(name, ridge) for name in self.watched.layers)
        return Distances(layers, self.watched.head, self.features, self.count)


@dataclass(frozen=True, eq=False)
class LayerSums:
    """Sums over what goes into a layer, about a centre near their mean.

    Attributes:
        centre: (numbers,).
        count: How many inputs.
        total: (numbers,).
        products: (numbers, numbers).
    """

    centre: Tensor
    count: int
    total: Tensor
    products: Tensor

    @classmethod
    def of(cls, inputs: Tensor, centre: Tensor) -> LayerSums:  # (rows, numbers)
        """Those of one batch."""
        away = inputs - centre
        return cls(centre, len(inputs), away.sum(0), away.mT @ away)

    def __add__(self, other: LayerSums) -> LayerSums:
        """Those of both, which have one centre."""
        sums = self.total + other.total, self.products + other.products
        return LayerSums(self.centre, self.count + other.count, *sums)

    def gaussian(self, name: str, ridge: float) -> LayerGaussian:
        """Mean and whitening; the ridge is relative to the mean variance."""
        away = self.total / self.count
        covariance = self.products / self.count - torch.outer(away, away)
        size = covariance.diagonal().mean()
        size = torch.where(size > 0, size, 1.0)
        eye = torch.eye(len(away), dtype=away.dtype, device=away.device)
        root = torch.linalg.cholesky(covariance + ridge * size * eye)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False)
        # In the usual order of memory, which exported files can hold.
        return LayerGaussian(name, self.centre + away, whitening.contiguous())


def gather_distances(
    setup: Setup, watched: Watched, batches: Batches, search: KnownOptions
) -> CrossFit[Distances]:
    """The distances from unlabelled inputs, or from the held-out ones in folds."""
    is_training = search.train_inputs is not None
    inputs = [x for x, _ in batches]
    if is_training:
        inputs = unseen_inputs(search.train_inputs, batches, setup)
    parts = [Gathered(watched) for _ in range(1 if is_training else FOLDS)]
    centers = dict[str, Tensor]()
    generator = torch.Generator().manual_seed(setup.seed)
    for number, x in enumerate(progress(inputs, search.show_progress, "distances")):
        seen = read(setup, x, watched.names)
        if is_training:
            check_finite(seen.inputs.values(), "activations at training inputs")
        centers = centers or centers_of(seen, watched)
        fold = folds_of(len(seen.logits), number) % len(parts)
        for k, part in enumerate(parts):
            part.add(seen.select((fold == k).to(seen.logits.device)), centers, generator)
    if is_training and parts[0].count < FEWEST:
        raise ValueError(
            f"`train_inputs` has {parts[0].count} inputs, and distances need at least {FEWEST}, "
            "better some thousand."
        )
    return cross_fit_distances(parts)


def cross_fit_distances(parts: Sequence[Gathered]) -> CrossFit[Distances]:
    """The distances from what was gathered in every fold, or from training inputs alone."""
    ridge = RIDGE if len(parts) == 1 else RIDGE_OF_FEW
    return CrossFit.of(parts, lambda group: Gathered.joined(group).distances(ridge))


def log_distances(known: CrossFit[Distances], seen: Activations, number: int) -> Tensor:
    """The log distances of a held-out batch, each row by inputs of which it is none, (rows, 2)."""
    return known.score(
        len(seen.logits), number, lambda distances, rows: distances.logs(seen.select(rows))
    )


def centers_of(seen: Activations, watched: Watched) -> dict[str, Tensor]:
    """Where the sums are about: near the mean, so that little is lost by subtracting it."""
    names = watched.layers
    return {n: narrow(seen.inputs[n].double(), MOST_NUMBERS).mean(0) for n in names}
