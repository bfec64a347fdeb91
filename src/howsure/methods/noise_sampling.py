"""Brute force: the plain network on noisy inputs, with dropout masks if there is a rate.

What assumed density filtering approximates, and what users compare it with. Every pass draws noise
and, if there is a rate, a mask; pairs of passes share a mask, so that the law of total variance
splits: data_var = E[variance at a given mask] = E[(a - b)**2 / 2], model_var = the rest. All
samples run as one batch, and are the same for every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.calls import ALL, Calls
from howsure.dropout import draw_uniforms, masks
from howsure.freed_memory import keep_freed_memory
from howsure.gradients.checks import RANDOM, layout_of
from howsure.gradients.points import draw
from howsure.gradients.sources import Sources
from howsure.methods.monte_carlo import Samples
from howsure.methods.passes import Pass
from howsure.methods.setup import Setup
from howsure.prediction import Prediction
from howsure.structure import Parts, map_leaves

# As many as one needs for a std within 5 %; and where a tolerance gives up.
SAMPLES = 200
MOST_SAMPLES = 2**16
# Elements of inputs that run at once.
_ELEMENTS = 2**20


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its sampled variances and their standard error."""
    keep_freed_memory()
    verdict = layout_of(setup, x)
    sources = Sources.of(setup, x, verdict.layout)
    calls = Calls(setup, x, verdict.layout, sources.sites, verdict.channels_last)
    calls.finish = Pass(setup, x).with_entropy
    samples = setup.samples or SAMPLES
    if samples < (4 if sources.active else 2):
        raise ValueError(
            "`samples` is too small for a variance; use at least 2, or 4 with dropout."
        )
    with torch.no_grad(), _own_random_numbers(setup.seed) if verdict.random else nullcontext():
        found = _sampled(setup, calls, sources, samples)
        plain = None
        if setup.prediction == "network" and not verdict.random:
            plain = calls.flat(calls.plain(), 1)[0]
    notes = [] if verdict.note is None else [verdict.note]
    notes += [f"{RANDOM}; they are part of `data_var`."] if verdict.random else []
    if setup.tolerance is not None and not bool(found.are_precise(setup.tolerance).all()):
        notes.append(
            f"Some inputs did not reach the tolerance of {setup.tolerance:g} with "
            f"{MOST_SAMPLES} samples; `std_error` says what they reached."
        )
    return replace(_prediction(setup, calls, found, plain), notes=tuple(notes))


def _sampled(setup: Setup, calls: Calls, sources: Sources, samples: int) -> Samples:
    """The given number of samples, or as many as every row needs."""
    size = 2 if sources.active else 1
    units = samples // size
    total = _units(setup, calls, sources, range(units), None)
    if setup.tolerance is None:
        return total
    done = total.are_precise(setup.tolerance)
    while not bool(done.all()) and units * size < MOST_SAMPLES:
        more = _units(setup, calls, sources, range(units, 2 * units), total.centre)
        total = total.where(~done, total + more)
        units *= 2
        done = done | total.are_precise(setup.tolerance)
    return total


def _units(
    setup: Setup, calls: Calls, sources: Sources, units: range, centre: Tensor | None
) -> Samples:
    """The sums of some units: single samples, or pairs that share a mask."""
    size = 2 if sources.active else 1
    elements = max(1, sources.elements * calls.count)
    at_once = max(1, (setup.chunk or _ELEMENTS // elements) // size)
    total: Samples | None = None
    for start in range(0, len(units), at_once):
        some = units[start : start + at_once]
        values = _values(setup, calls, sources, some, size)
        found = Samples.of(values.unflatten(0, (-1, size)), centre)
        centre = found.centre
        total = found if total is None else total + found
    assert total is not None
    return total


def _values(
    setup: Setup, calls: Calls, sources: Sources, units: range, size: int
) -> Tensor:  # (samples, rows, outputs)
    count = calls.count
    tensors = Parts(calls.x).tensors
    one = torch.ones(1, 1, dtype=torch.float64)
    numbers = range(units[0] * size, (units[-1] + 1) * size)
    noisy = {}
    for index, source in enumerate(sources.inputs):
        x = calls.base(tensors[source.number])
        z = draw(one, source.root.shape, numbers, setup.seed + 1, index).to(x.device, _wide(x))
        spread = z.expand(-1, count, *z.shape[2:])
        noisy[source.number] = (x + source.root.apply(spread, ALL)).to(x.dtype)
    return calls.at(len(numbers), noisy, _masks(setup, calls, sources, units, size))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _masks(
    setup: Setup, calls: Calls, sources: Sources, units: range, size: int
) -> list[Tensor | None]:
    """The masks of every site, (samples, rows, *units), the same for all rows."""
    if not sources.active:
        return []
    uniforms = draw_uniforms(sources.sites, units[-1] + 1, setup.seed)
    drawn = masks([each[units[0] :] for each in uniforms], setup.rates(sources.sites))
    return [
        None
        if mask is None
        else mask.repeat_interleave(size, 0)[:, None].expand(-1, calls.count, *mask.shape[1:])
        for mask in drawn
    ]


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """For a model that draws random numbers: the same ones for a seed; torch's own stay as is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _prediction(setup: Setup, calls: Calls, found: Samples, plain: Tensor | None) -> Prediction:
    """The prediction in the structure of the model's output."""
    assert calls.parts is not None
    mean = found.mean if plain is None else plain
    data, model = found.data_var, found.var - found.data_var
    if found.size == 1 and setup.noise is None:
        data, model = model, data

    def shaped(flat: Tensor) -> list[Tensor]:
        return calls.shaped(flat.to(calls.dtype))

    columns = [shaped(f) for f in (mean, data + setup.residual_var, model, found.std_error)]
    if setup.task == "regression":
        fill = calls.parts.filled
        values, *variances, error = (fill(column) for column in columns)
        data_var, model_var = (map_leaves(_or_zero, tree) for tree in variances)
        return Prediction(values, data_var, model_var, std_error=error)
    means, data_vars, model_vars, errors = columns
    logits = Prediction(means[1], data_vars[1], model_vars[1], std_error=errors[1])
    return Prediction(
        means[0],
        data_vars[0],
        model_vars[0],
        logits=logits,
        expected_entropy=shaped(found.mean)[2].squeeze(1),
        std_error=errors[0],
    )


def _or_zero(leaf: Any) -> Any:
    """What is not a floating-point tensor has no variance."""
    return leaf if isinstance(leaf, Tensor) else 0.0
