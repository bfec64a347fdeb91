"""A model at one input as a function of standard normal numbers.

The only place that knows nested inputs and outputs, several sensors, batch axes, devices and
multipliers inside the network. What an estimator sees is F(z): outputs, (points, rows, outputs),
for the random numbers of every source, (points, rows, *shape).
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.estimators.designs import FEW_ELEMENTS, Design, design, draw
from howsure.estimators.gradients import ALL, Derivatives, Rows, differentiate
from howsure.estimators.gradients import MOST_OUTPUTS as MOST_OUTPUTS
from howsure.estimators.image_gradients import fast_image_gradients
from howsure.multipliers.mode import Multiply
from howsure.multipliers.sites import Site, at_rates, draw_uniforms, masks
from howsure.noise.base import Root
from howsure.prediction import Source
from howsure.trees import (
    TensorTree,
    batch_size,
    clone_tensors,
    has_values,
    is_tracing,
    map_leaves,
    tensors_of,
)

if TYPE_CHECKING:
    from howsure.setup import Setup

# Numbers that are kept from call to call: 4 MB each of the last few.
_KEPT, _LAST = 2**20, 4
# Streams of random numbers: multipliers from here on, so that adding a sensor does not
# change their draws.
_MULTIPLIERS = 1000
# Samples share no numbers: each is made of its own.
_ONE = torch.ones(1, 1, dtype=torch.float64)
_NOTHING = nullcontext()
# Points that share nothing are a block of their own.
_INDEPENDENT = range(900_000, 900_001)
# What is added to the seed of points for that of samples.
_SAMPLES = 77


class Layout(enum.Enum):
    """How a model runs at many points."""

    BATCHED = "all points are rows of one batch"
    LOOPED = "one call for each point, whose rows are independent"
    SINGLE = "one call for each point, which is one input with all its rows"


@dataclass(frozen=True)
class Probe:
    """What a look at the model says about all inputs of one shape.

    Attributes:
        layout: How it runs at many points.
        output_axes: The batch axis of each output tensor.
        channels_last: Whether images are laid out with their channels last.
        is_random: Whether the same input gives different outputs.
        mixes_rows: Whether rows influence each other although there is a batch axis.
        outputs: How many numbers a row has as outputs.
        returns_floats_only: Whether the output is made of floating-point tensors alone.
        hides_gradients: Whether autograd disagrees with finite differences in most rows; false if
            not checked.
        hides_in_rows: Whether it does in some: every call looks at its own.
        needs_masks: Whether the model's own dropout makes another variance than Gaussian
            multipliers; false if not checked.
        chooses: Whether few numbers of a row choose, round or clip what it returns; false if not
            checked.
        bends: Whether few numbers of a row choose it, or pass a function that is not linear; false
            if not checked.
        writes_nothing: Whether there is nothing that a call could write; false if not checked.
    """

    layout: Layout
    output_axes: tuple[int, ...] = ()
    channels_last: bool = False
    is_random: bool = False
    mixes_rows: bool = False
    outputs: int = 0
    returns_floats_only: bool = False
    hides_gradients: bool = False
    hides_in_rows: bool = False
    needs_masks: bool = False
    chooses: bool = False
    bends: bool = False
    writes_nothing: bool = False


@dataclass(frozen=True, eq=False)
class NoisyInput:
    """An input with sensor noise: its number among the floating-point tensors, name and noise."""

    number: int
    name: str
    root: Root


@dataclass(frozen=True, eq=False)
class Sources:
    """All that is random: noisy inputs, and the sites of multipliers with their variances.

    Attributes:
        inputs: The noisy inputs.
        sites: All sites.
        odds: The variance p / (1 - p) of each site's multipliers; 0 where nothing is dropped.
        is_watched: Whether gradients with respect to a multiplier of 1 at every site are wanted.
    """

    inputs: tuple[NoisyInput, ...]
    sites: tuple[Site, ...] = ()
    odds: tuple[float, ...] = ()
    is_watched: bool = False

    @classmethod
    def of(cls, setup: Setup, x: Any, layout: Layout, *, watch: bool = False) -> Sources:
        """Those of a setup for an input; `watch` adds multipliers that do not vary."""
        is_single = layout is Layout.SINGLE

        def sensors() -> Sources:
            return cls(tuple(NoisyInput(*root) for root in setup.roots(x, whole=is_single)))

        sources = setup.cached_noise(("sources", is_single), x, sensors)
        if watch:
            sites = setup.with_unit_multipliers(x).sites(x)
            return replace(sources, sites=sites, odds=(0.0,) * len(sites), is_watched=True)
        if not setup.has_masks(x):
            return sources
        sites = setup.sites(x)
        rates = setup.rates(sites)
        odds = tuple(rate / (1 - rate) for rate in rates)
        return replace(sources, sites=at_rates(sites, rates), odds=odds)

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The numbers of the sites whose units vary."""
        return tuple(index for index, odds in enumerate(self.odds) if odds > 0)

    @cached_property
    def all(self) -> tuple[Source, ...]:
        """Sensors first, then layers whose units vary."""
        sensors = [
            Source(noisy.name, "input", tuple(noisy.root.shape), noisy.root.is_diagonal)
            for noisy in self.inputs
        ]
        sites = [self.sites[number] for number in self.active]
        return (*sensors, *(Source(s.name, "dropout", tuple(s.units)) for s in sites))

    @cached_property
    def streams(self) -> tuple[int, ...]:
        """The number of every source's stream of random numbers."""
        return (*range(len(self.inputs)), *(_MULTIPLIERS + site for site in self.active))

    @cached_property
    def shapes(self) -> tuple[object, ...]:
        """What points depend on."""
        watched = [site.units for site in self.sites] if self.is_watched else ()
        return (*(source.shape for source in self.all), *self.streams, *watched)

    @cached_property
    def elements(self) -> int:
        """How many random numbers a row has."""
        return sum(math.prod(source.shape) for source in self.all)

    @cached_property
    def design(self) -> Design:
        """The points of a block."""
        few = self.elements <= FEW_ELEMENTS
        return design(noise=bool(self.inputs), multipliers=bool(self.active), few=few)


class NotRowsError(ValueError):
    """The output does not have one row for each row of the input."""


class Problem:
    """The model at an input, with its noise and multipliers, as F(z).

    Attributes:
        setup: The model and its settings.
        x: The input, in the user's structure.
        probe: How the model can be run.
        sources: What is random.
        tensors: The floating-point tensors of the input.
        rows: How many rows the input has; 1 if a call is one input.
        design: The points of a block.
        inputs: How many sources are sensors.
        watched: How many sites have multipliers of 1 whose gradients are wanted.
        elements: Random numbers of a row.
        may_choose_rows: Whether a call may leave rows out.
        shares_points: Whether all rows have the same random numbers.
        device: Of the input.
        wide: In which random numbers and variances are computed: as the input, or float32.
        structure: That of the model's output, once it was called.
        columns: The outputs of every row that count, (rows, outputs); `None` for all.
        finish: What is done to the model's output.
    """

    def __init__(self, setup: Setup, x: Any, probe: Probe, sources: Sources | None = None) -> None:
        self.setup = setup
        self.x = x
        self.probe = probe
        sources = Sources.of(setup, x, probe.layout) if sources is None else sources
        self.sources = sources
        tensors = [x] if type(x) is Tensor and x.is_floating_point() else TensorTree(x).tensors
        self.tensors = tensors
        self.axis = setup.batch_dim or 0
        self.rows = 1 if probe.layout is Layout.SINGLE else batch_size(x, self.axis)
        self.design = sources.design
        self.inputs = len(sources.inputs)
        self.watched = len(sources.sites) if sources.is_watched else 0
        self.elements = sources.elements
        self.may_choose_rows = probe.layout is Layout.BATCHED
        self.shares_points = setup.shared_masks
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.wide = wide_type(tensors[0].dtype) if tensors else torch.float32
        self.structure: TensorTree | None = None
        self.columns: Tensor | None = None
        self._images = [x for s in sources.inputs if (x := tensors[s.number]).dim() == 4]
        self.finish: Callable[[Any], Any] | None = None

    def __call__(self, z: Sequence[Tensor], rows: Rows = ALL) -> Tensor:
        """The outputs, (points, rows, outputs), at z of every source, (points, rows, *shape)."""
        sources = self.sources
        noisy = {}
        for source, normals in zip(sources.inputs, z, strict=False):
            x = self.input_rows(source.number, rows)
            noisy[source.number] = source.root.add_to(x, normals, rows)
        others = z[len(sources.inputs) :]
        if sources.is_watched:
            return self.run(len(z[0]), noisy, [1 + normals for normals in others], rows)
        multipliers: list[Tensor | None] = [None] * len(sources.sites)
        for site, normals in zip(sources.active, others, strict=False):
            multipliers[site] = 1 + math.sqrt(sources.odds[site]) * normals
        return self.run(len(z[0]), noisy, multipliers, rows)

    def differentiate(self, z: Sequence[Tensor], rows: Rows = ALL) -> Derivatives:
        """The same outputs, with their gradients with respect to z."""
        return differentiate(self, z, rows)

    def points(
        self, blocks: range, rows: int | None = None, part: int = 0, *, plain: bool = False
    ) -> list[Tensor]:
        """z of every source for some blocks, (points, rows, *shape), with z = 0 in front if asked.

        All rows have the same, or each its own: `part` numbers the pass that they run in.
        """
        rows = self.rows if rows is None else rows
        drawn = 1 if self.shares_points else rows
        sources, design = self.sources, self.sources.design
        # Rows of one pass have a stream together.
        seed = self.setup.seed + 104_729 * part

        def draw_all() -> list[Tensor]:
            mixings = [design.noise] * self.inputs + [design.multipliers] * len(sources.active)
            sites = sources.sites if sources.is_watched else ()
            count = len(blocks) * design.points
            numbers = [
                draw(mixing, (drawn, *source.shape), blocks, seed, stream).flatten(0, 1)
                for mixing, source, stream in zip(
                    mixings, sources.all, sources.streams, strict=True
                )
            ]
            # Nothing is added to watched multipliers.
            numbers += [torch.zeros(count, drawn, *site.units) for site in sites]
            if plain:
                numbers = [torch.cat([torch.zeros_like(n[:1]), n]) for n in numbers]
            return [number.to(self.device, self.wide) for number in numbers]

        key = (seed, blocks, drawn, plain, self.device, self.wide, sources.shapes)
        return [self._spread(z, rows) for z in self._remember("points", key, draw_all)]

    def independent_points(self, count: int, rows: int) -> list[Tensor]:
        """z of every source at points that share nothing, (points, rows, *shape)."""
        drawn = 1 if self.shares_points else rows
        pairs = zip(self.sources.all, self.sources.streams, strict=True)
        normals = [
            draw(_ONE, (count, drawn, *source.shape), _INDEPENDENT, self.setup.seed, stream)[0, 0]
            for source, stream in pairs
        ]
        sites = self.sources.sites if self.sources.is_watched else ()
        normals += [torch.zeros(count, drawn, *site.units) for site in sites]
        return [self._spread(z.to(self.device, self.wide), rows) for z in normals]

    def zeros(self) -> list[Tensor]:
        """The plain point alone, (1, rows, *shape) of every source."""
        return [z[:1] for z in self.points(range(1), plain=True)]

    @staticmethod
    def _spread(z: Tensor, rows: int) -> Tensor:
        """The same numbers for all rows."""
        if z.shape[1] == rows:
            return z
        spread = z.expand(-1, rows, *z.shape[2:])
        # Expanded tensors would fix the batch size of an exported program.
        return spread.clone() if is_tracing() else spread

    def _remember(self, name: str, key: Any, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `make` gives for this key; looked up if it was one of the last.

        Every call begins with the same points, and to draw them takes as long as a small network.
        Stand-ins inside a trace are not kept: the calls after it need numbers.
        """
        kept: dict[Any, list[Tensor]] = self.setup._cache.setdefault(name, {})
        if key in kept:
            return kept[key]
        with torch.inference_mode(False):
            numbers = make()
        are_small = sum(n.numel() for n in numbers) <= _KEPT
        if are_small and all(map(has_values, numbers)):
            while len(kept) >= _LAST:
                kept.pop(next(iter(kept)), None)
            kept[key] = numbers
        return numbers

    # Samples.

    def draw(self, groups: range, rows: Rows = ALL) -> Draws:
        """Noisy inputs and masks for some groups: single samples, or pairs with one mask."""
        size = self.group_size
        numbers = range(groups[0] * size, (groups[-1] + 1) * size)
        count = len(rows) if isinstance(rows, Tensor) else len(range(self.rows)[rows])
        noisy = {}
        for source, normals in zip(self.sources.inputs, self.normals(numbers, count), strict=True):
            x = self.input_rows(source.number, rows)
            z = normals.to(x.device, wide_type(x.dtype)).expand(-1, len(x), *normals.shape[2:])
            noisy[source.number] = source.root.add_to(x, z, rows)
        dropped = [
            None if mask is None else mask.expand(-1, count, *mask.shape[2:])
            for mask in self._masks(groups, size, count)
        ]
        return Draws(len(numbers), noisy, dropped)

    @property
    def group_size(self) -> int:
        """Samples that share a mask: two, where both the noise and the masks are random."""
        return 2 if self.sources.active and self.sources.inputs else 1

    def normals(self, numbers: range, rows: int = 1) -> list[Tensor]:
        """Standard normal numbers of every noisy input for these samples, (samples, rows, *shape).

        The same for all rows, unless they have their own.
        """
        drawn = 1 if self.setup.shared_masks else rows
        shapes = [(drawn, *source.root.shape) for source in self.sources.inputs]
        seed = self.setup.seed + _SAMPLES

        def draw_all() -> list[Tensor]:
            return [draw(_ONE, shape, numbers, seed, i)[:, 0] for i, shape in enumerate(shapes)]

        return self._remember("samples", (seed, numbers, *shapes), draw_all)

    def _masks(self, groups: range, size: int, rows: int) -> list[Tensor | None]:
        """The masks of every site, (samples, rows or 1, *units); a group of samples shares one."""
        if not self.sources.active:
            return []
        setup, sites = self.setup, self.sources.sites
        if setup.uniforms is not None:
            units = [tuple(site.units) for site in sites]
            given = [
                tuple(u.shape[-len(shape) :])
                for u, shape in zip(setup.uniforms, units, strict=False)
            ]
            if given != units or len(setup.uniforms) != len(units):
                raise ValueError(
                    f"`uniforms` must be one tensor for each site, whose units are {units}."
                )
            uniforms = [u.unsqueeze(1) if setup.shared_masks else u for u in setup.uniforms]
        else:
            drawn = 1 if setup.shared_masks else rows
            uniforms = draw_uniforms(sites, groups[-1] + 1, setup.seed, batch=drawn)
        some = [u[groups[0] : groups[-1] + 1] for u in uniforms]
        dropped = masks(some, setup.rates(sites))
        return [None if m is None else m.repeat_interleave(size, 0) for m in dropped]

    # The model.

    def plain(self) -> Tensor:  # (rows, outputs)
        """What the model itself says: one call with copies of the inputs."""
        output = self.setup.run(clone_tensors(self.x))
        self.structure = TensorTree(output if self.finish is None else self.finish(output))
        return self.flatten(self.structure.tensors, 1)[0]

    def learned_variance(self) -> Tensor | float:  # (rows, outputs)
        """The variance that the model itself predicts; 0 if it predicts none."""
        learned = self.setup.learned_variance(self.x)
        if learned is None:
            return 0.0
        return self.flatten(TensorTree(learned).tensors, 1)[0].to(self.wide)

    def run(
        self,
        points: int,
        noisy: Mapping[int, Tensor],
        multipliers: Sequence[Tensor | None] = (),
        rows: Rows = ALL,
    ) -> Tensor:
        """The outputs at some points, flat: (points, rows, outputs).

        Args:
            points: How many.
            noisy: Floating-point inputs by number, (points, rows, *row's shape).
            multipliers: Those of the sites, (points, rows, *units).
            rows: The rows that are run; only a batched call can leave rows out.
        """
        if points > 1 and self.probe.layout is not Layout.BATCHED:
            parts = [
                self.run(
                    1,
                    {number: x[p : p + 1] for number, x in noisy.items()},
                    [None if m is None else m[p : p + 1] for m in multipliers],
                    rows,
                )
                for p in range(points)
            ]
            if len(shapes := {tuple(part.shape[1:]) for part in parts}) > 1:
                raise NotRowsError(
                    "The model returns more or fewer numbers under noise than without it "
                    f"({sorted(shapes)[:2]}); choose a part of fixed size with `output=`."
                )
            return torch.cat(parts)
        x, writes_nothing = self._assemble(points, noisy, rows), self.probe.writes_nothing
        with self._fast_gradients(points):
            if multipliers and any(m is not None for m in multipliers):
                groups = [None if m is None else self._join(m) for m in multipliers]
                with Multiply(self.setup.model, self.sources.sites, groups) as mode:
                    output = self.setup.run(x, writes_nothing=writes_nothing)
                mode.check_all_used()
            else:
                output = self.setup.run(x, writes_nothing=writes_nothing)
        structure = TensorTree(output if self.finish is None else self.finish(output))
        # What a plain call returned besides tensors is what users expect.
        self.structure = self.structure or structure
        flat = self.flatten(structure.tensors, points)
        if self.columns is None:
            return flat
        return flat.gather(2, self.columns[rows].expand(points, -1, -1))

    def _fast_gradients(self, points: int) -> Any:
        if not self._images or not torch.is_grad_enabled():
            return _NOTHING
        return fast_image_gradients(self._images, points)

    def input_rows(self, number: int, rows: Rows) -> Tensor:
        """Some rows of a floating-point input, in front; the whole input, if a call is one."""
        tensor = self.tensors[number].detach()
        if self.probe.layout is Layout.SINGLE:
            return tensor.unsqueeze(0)
        tensor = _to_front(tensor, self.axis)
        return tensor if rows is ALL else tensor[rows]

    def _assemble(self, points: int, noisy: Mapping[int, Tensor], rows: Rows) -> Any:
        """The input with noisy tensors in place of its own, and copies of all others."""
        is_batched = self.probe.layout is Layout.BATCHED
        if is_batched and noisy and self.x is self.tensors[0]:
            return self._move_back(noisy[0].flatten(0, 1))
        number = -1

        def leaf(item: Any) -> Any:
            nonlocal number
            if not isinstance(item, Tensor):
                return item
            number += item.dtype.is_floating_point
            if item.dtype.is_floating_point and number in noisy:
                tensor = self._move_back(self._join(noisy[number]))
                # Some models rely on strides or storage: no view of a larger tensor.
                return tensor if is_batched else tensor.clone()
            if not is_batched or item.dim() == 0:
                return item.clone()
            chosen = _to_front(item, self.axis)[rows]
            return self._move_back(chosen.repeat(points, *(1,) * (chosen.dim() - 1)))

        return map_leaves(leaf, self.x)

    def _join(self, tensor: Tensor) -> Tensor:
        """Points and rows on one axis; the whole input, if a call is one."""
        return tensor[0, 0] if self.probe.layout is Layout.SINGLE else tensor.flatten(0, 1)

    def _move_back(self, tensor: Tensor) -> Tensor:
        """The batch axis where the model expects it."""
        if self.probe.layout is Layout.SINGLE:
            return tensor
        # The order in memory in which convolutions of a processor are fastest.
        if tensor.dim() == 4 and self.axis == 0 and self.probe.channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.movedim(0, self.axis) if self.axis else tensor

    # Flat outputs, and back.

    @property
    def dtype(self) -> torch.dtype:
        """Of all outputs together: the widest."""
        assert self.structure is not None
        first, *others = (out.dtype for out in self.structure.tensors)
        return functools.reduce(torch.promote_types, others, first)

    def flatten(self, outputs: Sequence[Tensor], points: int) -> Tensor:
        """Outputs as (points, rows, outputs)."""
        if self.probe.layout is Layout.SINGLE:
            return torch.cat([out.reshape(1, 1, -1) for out in outputs], 2)
        columns = []
        for number, out in enumerate(outputs):
            axis = self._output_axis(number)
            if out.dim() <= axis or out.shape[axis] % points:
                raise NotRowsError(
                    f"An output of shape {tuple(out.shape)} does not have a row for each input."
                )
            rows = _to_front(out, axis)
            size = rows.shape[0] // points, math.prod(rows.shape[1:])
            columns.append(rows.reshape(points, *size))
        return columns[0] if len(columns) == 1 else torch.cat(columns, 2)

    def _output_axis(self, number: int) -> int:
        axes = self.probe.output_axes
        return axes[number] if number < len(axes) else self.axis

    def unflatten(self, flat: Tensor) -> Any:  # (rows, outputs)
        """Predictions in the structure of the model's output."""
        assert self.structure is not None
        return self.structure.unflatten(self.split(flat))

    def unflatten_variance(self, flat: Tensor) -> Any:  # (rows, outputs)
        """Variances, or errors, likewise; those of half precision are kept in float32."""
        assert self.structure is not None
        return self.structure.unflatten_variance(self.split(flat, wide=True))

    def split(self, flat: Tensor, *, wide: bool = False) -> list[Tensor]:  # (rows, outputs)
        """Flat outputs in the shapes and types of the model's."""
        assert self.structure is not None
        is_single, parts, start = self.probe.layout is Layout.SINGLE, [], 0
        for number, out in enumerate(self.structure.tensors):
            axis = 0 if is_single else self._output_axis(number)
            shape = out.shape if is_single else (*out.shape[:axis], *out.shape[axis + 1 :])
            size = math.prod(shape)
            column = flat if size == flat.shape[1] else flat[:, start : start + size]
            whole = shape if is_single else (flat.shape[0], *shape)
            part = column if column.shape == whole else column.reshape(whole)
            part = part.movedim(0, axis) if axis else part
            dtype = wide_type(out.dtype) if wide else out.dtype
            parts.append(part if part.dtype == dtype else part.to(dtype))
            start += size
        return parts


@dataclass(frozen=True, eq=False)
class Draws:
    """Noisy inputs by number and masks of the sites, (samples, rows, ...) each."""

    count: int
    noisy: dict[int, Tensor]
    masks: list[Tensor | None]

    def only(self, sample: int, row: int) -> Draws:
        """One row of one sample."""
        at = slice(sample, sample + 1), slice(row, row + 1)
        noisy = {number: x[at] for number, x in self.noisy.items()}
        return Draws(1, noisy, [None if mask is None else mask[at] for mask in self.masks])


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _to_front(tensor: Tensor, axis: int) -> Tensor:
    """The tensor with this axis first."""
    return tensor.movedim(axis, 0) if axis else tensor


def has_rows(x: Any, axis: int) -> bool:
    """Whether every tensor of an input has the declared batch axis, all of one length."""
    tensors = [tensor for tensor in tensors_of(x) if tensor.dim() > 0]
    if not tensors or any(tensor.dim() <= axis for tensor in tensors):
        return False
    return len({tensor.shape[axis] for tensor in tensors}) == 1


def check_outputs(count: int) -> None:
    """An error where a backward pass for each output is too many."""
    if count > MOST_OUTPUTS:
        raise ValueError(
            f"The model has {count} outputs per input, and this method needs a backward pass for "
            f"each; it does up to {MOST_OUTPUTS}. Choose some with `output=lambda y: y[:, :8]`, or "
            'sample with `method="noise_sampling"`.'
        )
