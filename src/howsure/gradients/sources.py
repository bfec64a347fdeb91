"""All that is random about a prediction, sensors and dropout masks, and gradients for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import Calls, Layout, Rows
from howsure.gradients.image_gradients import fast_image_gradients
from howsure.gradients.points import FEW_ELEMENTS, Design, design_for, draw
from howsure.multipliers import Site
from howsure.noise import Root
from howsure.setup import Setup
from howsure.trees import has_values, is_tracing

# Numbers that are kept from call to call: 4 MB.
_REMEMBERED = 2**20
# One backward pass per output: beyond this, sampling is cheaper.
MOST_OUTPUTS = 64


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

        def of_sensors() -> Sources:
            roots = setup.roots(x, whole=layout == "whole")
            return cls(tuple(Noisy(*found) for found in roots), (), (), setup.seed, setup._facts)

        sensors = setup.of_noise(("sources", layout, setup.seed), x, of_sensors)
        if watch:
            sites = setup.watching(x).sites(x)
            return replace(sensors, sites=sites, odds=(0.0,) * len(sites), watched=True)
        if not setup.has_masks(x):
            return sensors
        sites = setup.sites(x)
        odds = tuple(rate / (1 - rate) for rate in setup.rates(sites))
        return replace(sensors, sites=sites, odds=odds)

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


def leaf(z: Tensor, rows: int, calls: Calls) -> Tensor:  # (points, rows, *shape)
    """The points of a source, (points, rows or 1, *shape), as a tensor to differentiate for."""
    like = calls.tensors[0] if calls.tensors else z
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    spread = z.to(like.device, dtype).expand(-1, rows, *z.shape[2:])
    # What repeats in memory would tie a program to the batch size that it is written down for.
    return spread.clone() if is_tracing() else spread.detach()


def outputs_at(
    calls: Calls, sources: Sources, leaves: Sequence[Tensor], rows: Rows
) -> Tensor:  # (points, rows, outputs)
    """The network's outputs as a function of the standard normal points of all sources.

    Each of `leaves` is (points, rows, *shape).
    """
    noisy = {}
    for source, z in zip(sources.inputs, leaves, strict=False):
        x = calls.base(source.number, rows)
        noisy[source.number] = (x + source.root.apply(z, rows)).to(x.dtype)
    own = leaves[len(sources.inputs) :]
    if sources.watched:
        return calls.at(len(leaves[0]), noisy, [1 + z for z in own], rows)
    masks: list[Tensor | None] = [None] * len(sources.sites)
    for site, z in zip(sources.active, own, strict=False):
        masks[site] = 1 + math.sqrt(sources.odds[site]) * z
    return calls.at(len(leaves[0]), noisy, masks, rows)


def values_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Tensor:  # (points, rows, outputs)
    """Outputs of `count` rows at points, (points, rows or 1, *shape), without gradients."""
    with torch.no_grad():
        return outputs_at(calls, sources, [leaf(z, count, calls) for z in points], rows)


@dataclass(frozen=True, eq=False)
class Gradients:
    """What some points say about some rows.

    Attributes:
        values: Outputs, (points, rows, outputs).
        by_source: Gradients of every output with respect to each source, (outputs, points, rows,
            elements).
        watched: Gradients with respect to the watched multipliers, (outputs, points, rows, masks).
    """

    values: Tensor
    by_source: list[Tensor]
    watched: Tensor | None = None

    def at(self, points: slice) -> Gradients:
        """Those of some of the points."""
        watched = None if self.watched is None else self.watched[:, points]
        return Gradients(self.values[points], [each[:, points] for each in self.by_source], watched)


def gradients_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Gradients:
    """One forward pass at all points, and one backward pass for every output.

    `points` are those of every source, (points, rows, *shape), or the same for all `count` rows.
    """
    images = [x for x in (calls.tensors[n.number] for n in sources.inputs) if x.dim() == 4]
    fast = fast_image_gradients(images) if images else nullcontext()
    with torch.inference_mode(False), torch.enable_grad():
        all_points = [*points, *sources.still(len(points[0]))]
        leaves = [leaf(z, count, calls).requires_grad_() for z in all_points]
        with fast:
            outputs = outputs_at(calls, sources, leaves, rows)
        check_outputs(outputs.shape[2])
        found = [_gradients(outputs, k, leaves) for k in range(outputs.shape[2])]
    by_source = [_flat(column) for column in zip(*found, strict=True)]
    own = len(points)
    watched = torch.cat(by_source[own:], 3) if sources.watched else None
    return Gradients(outputs.detach(), by_source[:own], watched)


def check_outputs(count: int) -> None:
    """An error where a backward pass for each output is too many."""
    if count > MOST_OUTPUTS:
        raise ValueError(
            f"The model has {count} outputs per input, and this method needs a backward pass for "
            f"each; it does up to {MOST_OUTPUTS}. Choose some with `output=lambda y: y[:, :8]`, or "
            'sample with `method="noise_sampling"`.'
        )


def _gradients(outputs: Tensor, k: int, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of output k of every row: rows are independent, so one pass serves all."""
    if not outputs.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    count = outputs.shape[2]
    chosen = torch.ones_like(outputs)
    if count > 1:
        chosen = chosen * chosen.new_tensor([float(number == k) for number in range(count)])
    found = torch.autograd.grad(
        outputs, leaves, chosen, retain_graph=k < count - 1, allow_unused=True
    )
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(own) if each is None else each for each, own in pairs]


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    """(outputs, points, rows, elements)."""
    first, *others = gradients
    stacked = torch.stack([first, *others]) if others else first[None]
    return stacked.reshape(len(gradients), *first.shape[:2], math.prod(first.shape[2:]))
