"""Gradients of every output with respect to all sources of noise, at the points of some blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.calls import Calls, Rows
from howsure.dropout import Site
from howsure.gradients.points import Design, design_for, draw
from howsure.noise.roots import Root
from howsure.structure import Parts


@dataclass(frozen=True, eq=False)
class Noisy:
    """An input with sensor noise: its number among the floating-point tensors, name and noise."""

    number: int
    name: str
    root: Root


@dataclass(frozen=True, eq=False)
class Sources:
    """All that is random: sensors, and dropout masks with their odds p / (1 - p).

    Attributes:
        inputs: The noisy inputs.
        sites: All dropout sites.
        odds: The variance of each site's mask; 0 for those that are not dropped.
        seed: Seed of the points.
    """

    inputs: tuple[Noisy, ...]
    sites: tuple[Site, ...]
    odds: tuple[float, ...]
    seed: int

    @property
    def active(self) -> tuple[int, ...]:
        """The numbers of the sites whose units are dropped."""
        return tuple(index for index, odds in enumerate(self.odds) if odds > 0)

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


@dataclass(frozen=True, eq=False)
class Gradients:
    """What the points of some blocks say about some rows.

    Attributes:
        values: Outputs, (blocks * points, rows, outputs).
        by_source: Gradients of every output with respect to each source, (outputs,
            blocks * points, rows, elements).
    """

    values: Tensor
    by_source: list[Tensor]


def gradients_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Gradients:
    """One forward pass at all points, and one backward pass for every output.

    `points` are those of every source, (points, *shape); they are the same for all `count` rows.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [_leaf(z, count, calls.x) for z in points]
        outputs = outputs_at(calls, sources, leaves, rows)
        found = [_gradients(outputs, k, leaves) for k in range(outputs.shape[2])]
    by_source = [_flat(column) for column in zip(*found, strict=True)]
    return Gradients(outputs.detach(), by_source)


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    """(outputs, points, rows, elements)."""
    first = gradients[0]
    return torch.stack(list(gradients)).reshape(len(gradients), *first.shape[:2], -1)


def _leaf(z: Tensor, rows: int, x: Any) -> Tensor:
    """The points of a source for every row, as a leaf of its own to differentiate by."""
    like = Parts(x).tensors
    dtype = torch.float64 if like and like[0].dtype == torch.float64 else torch.float32
    device = like[0].device if like else z.device
    spread = z.to(device, dtype).unsqueeze(1).expand(-1, rows, *z.shape[1:])
    return spread.clone().requires_grad_()


def _gradients(outputs: Tensor, k: int, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of output k of every row: rows are independent, so one pass serves all."""
    output = outputs[:, :, k]
    if not output.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    is_last = k == outputs.shape[2] - 1
    found = torch.autograd.grad(output.sum(), leaves, retain_graph=not is_last, allow_unused=True)
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(leaf) if each is None else each for each, leaf in pairs]
