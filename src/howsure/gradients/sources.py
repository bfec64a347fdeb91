"""All that is random about a prediction: sensors, and dropout masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.calls import Calls, Layout, Rows
from howsure.dropout import Site
from howsure.gradients.points import Design, design_for, draw
from howsure.noise import roots_of
from howsure.noise.roots import Root
from howsure.structure import Parts

if TYPE_CHECKING:
    from howsure.methods.setup import Setup


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
    """

    inputs: tuple[Noisy, ...]
    sites: tuple[Site, ...]
    odds: tuple[float, ...]
    seed: int

    @classmethod
    def of(cls, setup: Setup, x: Any, layout: Layout) -> Sources:
        """Those of a setup for an input."""
        axis = None if layout == "whole" else setup.batch_dim
        inputs = tuple(Noisy(*found) for found in roots_of(setup.noise, x, axis))
        sites = setup.sites(x) if setup.has_masks(x) else ()
        odds = tuple(rate / (1 - rate) for rate in setup.rates(sites)) if sites else ()
        return cls(inputs, sites, odds, setup.seed)

    @property
    def active(self) -> tuple[int, ...]:
        """The numbers of the sites whose units are dropped."""
        return tuple(index for index, odds in enumerate(self.odds) if odds > 0)

    @property
    def names(self) -> tuple[str, ...]:
        """Of every source: sensors first."""
        sites = (self.sites[site].name for site in self.active)
        return (*(noisy.name for noisy in self.inputs), *sites)

    @property
    def elements(self) -> int:
        """How many random numbers a row has."""
        sizes = [noisy.root.shape for noisy in self.inputs]
        sizes += [self.sites[site].units for site in self.active]
        return sum(math.prod(size) for size in sizes)

    @property
    def design(self) -> Design:
        """The points of a block."""
        return design_for(noise=bool(self.inputs), masks=bool(self.active))

    def drawn(self, blocks: range) -> list[Tensor]:
        """Standard normal points of every source, (blocks * points, *shape)."""
        design, count = self.design, len(self.inputs)
        shapes = [(design.noise, noisy.root.shape) for noisy in self.inputs]
        shapes += [(design.masks, self.sites[site].units) for site in self.active]
        # Streams of sites are numbered from 1000 on: a further sensor leaves the masks alone.
        numbers = [*range(count), *(1000 + site for site in self.active)]
        return [
            draw(mixing, shape, blocks, self.seed, number).flatten(0, 1)
            for number, (mixing, shape) in zip(numbers, shapes, strict=True)
        ]


def leaf(z: Tensor, rows: int, x: Any) -> Tensor:  # (points, rows, *shape)
    """The points of a source, the same for every row, as a tensor of its own."""
    tensors = Parts(x).tensors
    dtype = torch.float64 if tensors and tensors[0].dtype == torch.float64 else torch.float32
    device = tensors[0].device if tensors else z.device
    return z.to(device, dtype).unsqueeze(1).expand(-1, rows, *z.shape[1:]).clone()


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
    for site, z in zip(sources.active, leaves[len(sources.inputs) :], strict=True):
        masks[site] = 1 + math.sqrt(sources.odds[site]) * z
    return calls.at(leaves[0].shape[0], noisy, masks, rows)


def values_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Tensor:  # (points, rows, outputs)
    """Outputs at points that are the same for all `count` rows, without gradients."""
    with torch.no_grad():
        return outputs_at(calls, sources, [leaf(z, count, calls.x) for z in points], rows)
