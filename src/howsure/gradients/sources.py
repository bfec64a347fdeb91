"""All that is random about a prediction: sensors, and dropout masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import Calls, Layout, Rows
from howsure.gradients.points import FEW_ELEMENTS, Design, design_for, draw
from howsure.masks import Site
from howsure.noise import roots_of
from howsure.noise.values import Root
from howsure.setup import Setup
from howsure.values.trees import Parts, has_values, is_traced

# Numbers that are kept from call to call: 4 MB.
_REMEMBERED = 2**20


@dataclass(frozen=True, eq=False)
class Noisy:
    """An input with sensor noise: its number among the floating-point tensors, name and noise."""

    number: int
    name: str
    root: Root


@dataclass(frozen=True, eq=False)
class Sources:
    """The noisy inputs, and the dropout sites with the variances of their masks.

    Attributes:
        inputs: The noisy inputs.
        sites: All dropout sites.
        odds: The variance p / (1 - p) of each site's mask; 0 where nothing is dropped.
        seed: Seed of the points.
        kept: What the setup remembers from call to call.
        watched: Whether gradients with respect to a multiplier of 1 at every site are wanted too.
    """

    inputs: tuple[Noisy, ...]
    sites: tuple[Site, ...]
    odds: tuple[float, ...]
    seed: int
    kept: dict[Any, Any]
    watched: bool = False

    @classmethod
    def of(cls, setup: Setup, x: Any, layout: Layout, *, watch: bool = False) -> Sources:
        """Those of a setup for an input; `watch` adds multipliers that do not vary."""
        roots = roots_of(setup.noise, x, setup.batch_dim, whole=layout == "whole")
        inputs = tuple(Noisy(*found) for found in roots)
        if watch:
            sites = setup.watching(x).sites(x)
            still = (0.0,) * len(sites)
            return cls(inputs, sites, still, setup.seed, setup._verdicts, watched=True)
        sites = setup.sites(x) if setup.has_masks(x) else ()
        odds = tuple(rate / (1 - rate) for rate in setup.rates(sites)) if sites else ()
        return cls(inputs, sites, odds, setup.seed, setup._verdicts)

    def kinds(self) -> list[Sources]:
        """Sensors alone and masks alone, if there are both; else itself."""
        if not (self.inputs and self.active):
            return [self]
        return [replace(self, odds=(0.0,) * len(self.odds)), replace(self, inputs=())]

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The numbers of the sites whose units are dropped."""
        return tuple(index for index, odds in enumerate(self.odds) if odds > 0)

    @property
    def names(self) -> tuple[str, ...]:
        """Of every source: sensors first."""
        sites = (self.sites[site].name for site in self.active)
        return (*(noisy.name for noisy in self.inputs), *sites)

    @cached_property
    def elements(self) -> int:
        """How many random numbers a row has."""
        return sum(math.prod(shape) for shape in self._shapes)

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Of one row's random numbers, for every source."""
        sensors = [tuple(noisy.root.shape) for noisy in self.inputs]
        return sensors + [tuple(self.sites[site].units) for site in self.active]

    @property
    def _numbers(self) -> list[int]:
        """Of every source's stream: sites from 1000 on, so that a sensor leaves masks alone."""
        return [*range(len(self.inputs)), *(1000 + site for site in self.active)]

    @cached_property
    def design(self) -> Design:
        """The points of a block."""
        few = self.elements <= FEW_ELEMENTS
        return design_for(noise=bool(self.inputs), masks=bool(self.active), few=few)

    def drawn(self, blocks: range, rows: int = 1, first: int = 0) -> list[Tensor]:
        """Standard normal points of every source, (blocks * points, rows, *shape).

        They are the same for all rows, and `rows` is 1; or every row from the first has its own.
        """
        design, numbers = self.design, self._numbers
        shapes = [(rows, *shape) for shape in self._shapes]
        mixings = [design.noise] * len(self.inputs) + [design.masks] * len(self.active)
        # Rows of one pass have a stream together.
        seed = self.seed + 104_729 * first

        def draw_all() -> list[Tensor]:
            each = zip(mixings, shapes, numbers, strict=True)
            return [draw(m, shape, blocks, seed, n).flatten(0, 1) for m, shape, n in each]

        return self.remembered("points", (seed, blocks, *shapes, *numbers), draw_all)

    def alone(self, points: int, stream: int) -> list[Tensor]:
        """Standard normal points of every source that share nothing, (points, 1, *shape)."""
        each, block = torch.ones(1, 1), range(stream, stream + 1)
        pairs = zip(self._shapes, self._numbers, strict=True)
        return [draw(each, (points, 1, *shape), block, self.seed, n)[0, 0] for shape, n in pairs]

    def remembered(self, name: str, key: Any, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `make` gives for this key; looked up if it was the last one.

        Every call begins with the same points, and to draw them takes as long as a small network.
        Stand-ins inside a trace are not kept: the calls after it need numbers.
        """
        known, found = self.kept.get(name, (None, []))
        if known == key:
            return found
        found = make()
        are_small = sum(each.numel() for each in found) <= _REMEMBERED
        if are_small and all(has_values(each) for each in found):
            self.kept[name] = (key, found)
        return found

    def still(self, points: int) -> list[Tensor]:
        """What is added to the watched multipliers: nothing, (points, 1, *units) each."""
        return [torch.zeros(points, 1, *site.units) for site in self.sites] if self.watched else []


def leaf(z: Tensor, rows: int, x: Any) -> Tensor:  # (points, rows, *shape)
    """The points of a source, (points, rows or 1, *shape), as a tensor to differentiate for."""
    tensors = Parts(x).tensors
    dtype = torch.float64 if tensors and tensors[0].dtype == torch.float64 else torch.float32
    device = tensors[0].device if tensors else z.device
    spread = z.to(device, dtype).expand(-1, rows, *z.shape[2:])
    # What repeats in memory would tie a program to the batch size that it is written down for.
    return spread.clone() if is_traced() else spread.detach()


def outputs_at(
    calls: Calls, sources: Sources, leaves: Sequence[Tensor], rows: Rows
) -> Tensor:  # (points, rows, outputs)
    """The network's outputs as a function of the standard normal points of all sources.

    Each of `leaves` is (points, rows, *shape).
    """
    tensors = Parts(calls.x).tensors
    noisy = {}
    for source, z in zip(sources.inputs, leaves, strict=False):
        x = calls.base(tensors[source.number])[rows].detach()
        noisy[source.number] = (x + source.root.apply(z, rows)).to(x.dtype)
    masks: list[Tensor | None] = [None] * len(sources.sites)
    for site, z in zip(sources.active, leaves[len(sources.inputs) :], strict=False):
        masks[site] = 1 + math.sqrt(sources.odds[site]) * z
    if sources.watched:
        masks = [1 + z for z in leaves[len(sources.inputs) :]]
    return calls.at(leaves[0].shape[0], noisy, masks, rows)


def values_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Tensor:  # (points, rows, outputs)
    """Outputs of `count` rows at points, (points, rows or 1, *shape), without gradients."""
    with torch.no_grad():
        return outputs_at(calls, sources, [leaf(z, count, calls.x) for z in points], rows)
