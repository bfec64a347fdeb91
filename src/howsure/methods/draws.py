"""Plain samples of the network: noise and masks drawn, all samples run as one batch.

The draws come from the seed alone and are the same for every row. With masks, samples come in
pairs that share one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.gradients.calls import ALL, Calls, Rows
from howsure.gradients.points import draw
from howsure.gradients.sources import Sources, leaf
from howsure.gradients.variances import Replaced
from howsure.methods.monte_carlo import Samples
from howsure.multipliers import draw_uniforms, masks
from howsure.noise import number_of
from howsure.setup import Setup
from howsure.trees import is_tracing

# As many as one needs for a std within 5 %; and where a tolerance gives up.
SAMPLES = 200
# As many as show that an output is not flat: a part of it that one sample in ten reaches is missed
# once in 350 times.
LOOK = 56
MOST_SAMPLES = 2**16
# Samples of which a row is compared with a call of its own.
_COMPARED = 16
# Elements of inputs that run at once.
_ELEMENTS = 2**20
# Samples share no numbers: each is made of its own.
_ALONE = torch.ones(1, 1, dtype=torch.float64)


def sampled_at(
    calls: Calls,
    sources: Sources,
    samples: int,
    rows: Rows = ALL,
    outputs: list[Tensor] | None = None,
) -> Samples:
    """The given number of samples of some rows, or as many as each needs for the tolerance.

    The outputs of the given number are added to the list, if there is one.
    """
    setup, total = calls.setup, few_at(calls, sources, samples, rows, outputs)
    if setup.tolerance is None:
        return total
    size = total.size
    units = samples // size
    done = total.are_precise(setup.tolerance)
    while not bool(done.all()) and units * size < MOST_SAMPLES:
        more = _units(calls, sources, range(units, 2 * units), total, rows)
        total = total.where(~done, total + more)
        units *= 2
        done = done | total.are_precise(setup.tolerance)
    return total


UNCHANGED = (
    "None of {samples} noisy samples changed some outputs of {count} of {total} inputs: their std "
    "of 0 does not know of steps that are rarer than that."
)


def unchanged(
    calls: Calls, sources: Sources, still: Tensor, samples: int
) -> tuple[str, ...]:  # still: (rows, outputs)
    """A note where outputs of noisy rows are the same in all samples, unless they are constants."""
    if is_tracing() or not sources.names or not bool(still.any()):
        return ()
    # What never changes for any input does not depend on it, unless that is all there is.
    rows = (still & ~still.all(0)).any(1) | still.all(1)
    if not sources.active:
        rows = rows & _have_noise(calls, sources)
    count = int(rows.sum())
    if not count:
        return ()
    return (UNCHANGED.format(samples=samples, count=count, total=len(rows)),)


def _have_noise(calls: Calls, sources: Sources) -> Tensor:  # (rows,)
    """Whether any input of a row has noise."""
    noises = [noise for _, noise in _one_draw(calls, sources)]
    return torch.stack([each.reshape(len(each), -1).any(1) for each in noises]).any(0)


def _one_draw(calls: Calls, sources: Sources) -> list[tuple[Tensor, Tensor]]:
    """Every noisy input, (rows, *shape), with a draw of its noise."""
    inputs = [calls.base(source.number, ALL) for source in sources.inputs]
    each = zip(inputs, sources.inputs, sources.alone(1, 0), strict=False)
    return [(x, source.root.apply(leaf(z, len(x), calls), ALL)[0]) for x, source, z in each]


LOST = (
    "The noise is not larger than the rounding of the inputs in {dtype}, so that samples do not "
    "have it as it is: take float64, or inputs that are closer to 0."
)
# A rounding of so many std of the noise makes a std 12 % too large.
_ROUNDING = 0.5


def lost_in_rounding(calls: Calls, sources: Sources) -> tuple[str, ...]:
    """A note where an input plus its noise is another number than that of its type."""
    if _is_far_above_rounding(calls, sources):
        return ()
    for x, noise in _one_draw(calls, sources):
        gap = ((x + noise).to(x.dtype) - x).to(noise.dtype) - noise
        if bool(gap.square().mean() > _ROUNDING**2 * noise.square().mean()):
            return (LOST.format(dtype=str(x.dtype).removeprefix("torch.")),)
    return ()


def _is_far_above_rounding(calls: Calls, sources: Sources) -> bool:
    """Whether numbers as large as the largest are closer than a std of the noise, if it is one."""
    variance = number_of(calls.setup.noise)
    if variance is None:
        return False
    std = math.sqrt(variance)
    inputs = [calls.base(source.number, ALL) for source in sources.inputs]
    return all(
        not x.numel() or float(x.abs().amax()) * torch.finfo(x.dtype).eps < std for x in inputs
    )


def few_at(
    calls: Calls,
    sources: Sources,
    samples: int,
    rows: Rows = ALL,
    outputs: list[Tensor] | None = None,
) -> Samples:
    """The given number of samples of some rows, whatever the tolerance."""
    units = samples // (2 if sources.active else 1)
    return _units(calls, sources, range(units), None, rows, outputs)


def _at_once(calls: Calls, sources: Sources) -> int:
    """How many units run as one batch."""
    elements = max(1, sources.elements * calls.count)
    return max(1, (calls.setup.chunk or _ELEMENTS // elements) // (2 if sources.active else 1))


def _units(
    calls: Calls,
    sources: Sources,
    units: range,
    first: Samples | None,
    rows: Rows,
    outputs: list[Tensor] | None = None,
) -> Samples:
    """What some units say: single samples, or pairs that share a mask."""
    size = 2 if sources.active else 1
    at_once = _at_once(calls, sources)
    total: Samples | None = None
    for start in range(0, len(units), at_once):
        some = units[start : start + at_once]
        values = _values(calls, sources, some, rows)
        if outputs is not None:
            outputs.append(values)
        found = Samples.of(values.unflatten(0, (-1, size)), first or total)
        total = found if total is None else total + found
    assert total is not None
    return total


def stand_alone(calls: Calls, sources: Sources, samples: int) -> bool:
    """Whether rows among samples have the outputs that they have in a call of their own.

    A branch on the largest number of a batch, say, is taken by a batch of many samples where a row
    by itself seldom takes it, if ever.
    """
    size = 2 if sources.active else 1
    units = max(1, min(samples // size, _at_once(calls, sources)))
    drawn = _drawn(calls, sources, range(units), ALL)
    # A model may write into its input, which is compared afterwards.
    copies = {number: each.clone() for number, each in drawn.noisy.items()}
    together = calls.at(drawn.count, copies, drawn.masks, ALL)
    spread = together.var(0, correction=0).sqrt()
    eps = torch.finfo(together.dtype).eps
    for sample in range(0, drawn.count, -(-drawn.count // _COMPARED)):
        row = sample % calls.count
        one = drawn.only(sample, row)
        try:
            alone = calls.at(1, one.noisy, one.masks, slice(row, row + 1))[0, 0]
        except Exception:  # A model that cannot do with one row may fail in any way.
            return True
        own = together[sample, row]
        if alone.shape == own.shape:
            gap, large = (alone - own).abs(), 200 * eps * own.abs().max()
            if bool((gap > torch.maximum(0.01 * spread[row], large)).any()):
                return False
    return True


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Noisy inputs by number and masks of the sites, (samples, rows, ...) each."""

    count: int
    noisy: dict[int, Tensor]
    masks: list[Tensor | None]

    def only(self, sample: int, row: int) -> _Drawn:
        """One row of one sample."""
        at = slice(sample, sample + 1), slice(row, row + 1)
        noisy = {number: each[at] for number, each in self.noisy.items()}
        return _Drawn(1, noisy, [None if mask is None else mask[at] for mask in self.masks])


def _values(
    calls: Calls, sources: Sources, units: range, rows: Rows
) -> Tensor:  # (samples, rows, outputs)
    """The outputs of all samples of some units."""
    drawn = _drawn(calls, sources, units, rows)
    return calls.at(drawn.count, drawn.noisy, drawn.masks, rows)


def _drawn(calls: Calls, sources: Sources, units: range, rows: Rows) -> _Drawn:
    """What all samples of some units draw."""
    size = 2 if sources.active else 1
    numbers = range(units[0] * size, (units[-1] + 1) * size)
    count = len(rows) if isinstance(rows, Tensor) else len(range(calls.count)[rows])
    own = 1 if calls.setup.shared_masks else count
    noisy = {}
    for source, normals in zip(sources.inputs, _normals(sources, numbers, own), strict=True):
        x = calls.base(source.number, rows)
        z = normals.to(x.device, _wide(x))
        spread = z.expand(-1, len(x), *z.shape[2:])
        noisy[source.number] = (x + source.root.apply(spread, rows)).to(x.dtype)
    shared = [
        None if mask is None else mask.expand(-1, count, *mask.shape[2:])
        for mask in _masks(calls.setup, sources, units, size, count)
    ]
    return _Drawn(len(numbers), noisy, shared)


def _normals(sources: Sources, numbers: range, rows: int) -> list[Tensor]:
    """Standard normal numbers of every noisy input for these samples, (samples, rows, *shape)."""
    shapes = [(rows, *source.root.shape) for source in sources.inputs]

    def draw_all() -> list[Tensor]:
        each = enumerate(shapes)
        return [draw(_ALONE, shape, numbers, sources.seed + 77, i)[:, 0] for i, shape in each]

    return sources.remembered("samples", (sources.seed, numbers, *shapes), draw_all)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _masks(
    setup: Setup, sources: Sources, units: range, size: int, rows: int
) -> list[Tensor | None]:
    """The masks of every site, (samples, rows or 1, *units); samples of a unit share theirs."""
    if not sources.active:
        return []
    own = 1 if setup.shared_masks else rows
    uniforms = draw_uniforms(sources.sites, units[-1] + 1, setup.seed, batch=own)
    drawn = masks([each[units[0] :] for each in uniforms], setup.rates(sources.sites))
    return [None if each is None else each.repeat_interleave(size, 0) for each in drawn]


@dataclass(frozen=True, eq=False)
class Sampled:
    """What plain passes say about some rows, given as indices."""

    calls: Calls
    sources: Sources

    def spread(self, rows: Tensor) -> Tensor:
        """The variance of the outputs over a few samples, (rows, outputs)."""
        chosen, own = self._places(rows)
        with torch.no_grad():
            return few_at(self.calls, self.sources, LOOK, chosen).var[own]

    def replaced(self, rows: Tensor) -> Replaced:
        """The variances by sampling."""
        chosen, own = self._places(rows)
        outputs: list[Tensor] = []
        with torch.no_grad():
            found = sampled_at(self.calls, self.sources, SAMPLES, chosen, outputs)
            values = torch.cat(outputs).to(found.var.dtype)[:, own]
            deviations = values - values.mean(0)
            covariance = torch.einsum("nrk,nrl->rkl", deviations, deviations) / (len(values) - 1)
            share = self._linear_share(deviations)
        data, total, error = (each[own] for each in (found.data_var, found.var, found.std_error))
        if not self.sources.inputs:
            data = torch.zeros_like(total)
        return Replaced(rows, data, total - data, error, covariance, share)

    def _linear_share(self, deviations: Tensor) -> Tensor:  # (samples, rows, outputs)
        """c_1 / Var with c_1 = |E[F(Z) Z]|^2, from products of different samples.

        Not known where dropout is sampled too, or every row has draws of its own: NaN.
        """
        samples, rows, outputs = deviations.shape
        if self.sources.active or not self.calls.setup.shared_masks:
            return deviations.new_full((rows, outputs), torch.nan)
        first = same = torch.zeros_like(deviations[0])
        for normals in _normals(self.sources, range(samples), 1):
            z = normals.flatten(1).to(deviations)
            first = first + torch.einsum("nrk,nd->rkd", deviations, z).square().sum(2)
            same = same + torch.einsum("nrk,n->rk", deviations.square(), z.square().sum(1))
        variance = deviations.square().sum(0) * samples
        share = (first - same) / torch.where(variance > 0, variance, 1.0)
        return torch.where(variance > 0, share.clamp(0, 1), 1.0)

    def _places(self, rows: Tensor) -> tuple[Rows, Rows]:
        """The rows that run, and which of those are meant: all run if none can be left out."""
        return (rows, ALL) if self.calls.layout == "folded" else (ALL, rows)
