"""Whether gradients are what they say, checked on the user's own network before they are used.

The first call for a model makes all checks; a later one those for shapes that are new.

- Directional derivatives against differences of outputs: they find a gradient that is hidden by
  `no_grad`, `detach`, rounding or a backward pass of its own.
- The variance by gradients against that of plain samples: it finds steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.calls import Calls, Rows
from howsure.gradients.backward import MOST_OUTPUTS, Gradients, gradients_at
from howsure.gradients.classes import varying
from howsure.gradients.layout import Verdict, some_rows, verdict_for
from howsure.gradients.sources import Sources, values_at
from howsure.gradients.sums import sums_of
from howsure.setup import Setup

# Plain samples and blocks of points that are compared.
SAMPLES = 96
BLOCKS = 4
# Steps of the differences, in std of the noise. A gradient is believed if the differences agree
# with it at one of them: a long step is blurred by curvature, a short one by rounding.
STEPS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
# Largest relative difference of the two.
HIDDEN = 0.03
# The variance by gradients differs from that of samples by so many standard errors.
ERRORS = 4.0

HIDES = (
    "the model hides its gradient (no_grad, detach, rounding, or a backward pass of its own): "
    "outputs change with the noise and their gradients do not tell how"
)
STEPWISE = "the outputs are flat or have steps: their variance is not that of their gradients"
TOO_MANY = (
    "rows influence each other, so that a call is one input, and its outputs are too many for a "
    "backward pass each"
)


def verdict_of(setup: Setup, x: Any) -> Verdict:
    """The layout, and whether gradients can be relied on for inputs of this kind."""


    def doubt(verdict: Verdict) -> str | None:
        sources = Sources.of(setup, x, verdict.layout)
        return _doubt(verdict.calls(setup, x, sources), sources)

    return verdict_for(setup, x, doubt)


def _doubt(calls: Calls, sources: Sources) -> str | None:
    """Why the gradients cannot be relied on; `None` if they can."""
    rows, count = some_rows(calls)
    if not sources.names or not count:
        return None
    with torch.no_grad():
        plain = calls.flat(calls.plain(), 1)[0]
    if calls.layout == "whole" and plain.shape[1] > MOST_OUTPUTS:
        return TOO_MANY
    if calls.setup.task == "classification":
        calls.columns = varying(plain)
    design, points = sources.design, sources.drawn(range(BLOCKS))
    try:
        found = gradients_at(calls, sources, points, rows, count)
    except RuntimeError as error:
        return f"the backward pass failed ({str(error).splitlines()[0]})"
    blocks = [slice(b * design.points, (b + 1) * design.points) for b in range(BLOCKS)]
    if _is_hidden(calls, sources, found.at(blocks[0]), points, rows, count):
        return HIDES
    sums = [sums_of(found.at(block), design, len(sources.inputs), 0) for block in blocks]
    variances = torch.stack([each.variance.mean for each in sums])  # (blocks, rows, outputs)
    return STEPWISE if _disagrees(calls, sources, rows, count, variances) else None


def _is_hidden(
    calls: Calls,
    sources: Sources,
    found: Gradients,
    points: Sequence[Tensor],
    rows: Rows,
    count: int,
) -> bool:
    """Whether directional derivatives differ from what the gradients say, for any output."""
    size = len(found.values)
    first = [z[:size] for z in points]
    # The points of the next block are independent directions.
    directions = [z[size : 2 * size] for z in points]
    slopes = torch.zeros_like(found.values, dtype=found.by_source[0].dtype)
    for gradient, along in zip(found.by_source, directions, strict=True):
        slopes = slopes + torch.einsum("kprd,pd->prk", gradient, along.flatten(1).to(gradient))
    eps = torch.finfo(found.values.dtype).eps
    scale = found.values.abs().amax((0, 1))
    seen, agreed = (torch.zeros_like(scale, dtype=torch.bool) for _ in range(2))
    for step in STEPS:
        if bool(agreed.all()):
            break
        both = [
            [z + sign * step * along for z, along in zip(first, directions, strict=True)]
            for sign in (1, -1)
        ]
        ends = [values_at(calls, sources, each, rows, count) for each in both]
        change = ((ends[0] - ends[1]) / (2 * step)).to(slopes.dtype)
        rounding, size = 20 * eps * scale / step, _rms(change)
        is_clear = rounding <= HIDDEN * torch.maximum(size, _rms(slopes)) / 3
        seen |= is_clear
        agreed |= is_clear & (_usual(change - slopes) <= HIDDEN * size + rounding)
    return bool((seen & ~agreed).any())


def _usual(values: Tensor) -> Tensor:
    """The median size over points and rows: a kink between two ends spoils some, hiding all."""
    return values.abs().flatten(0, 1).median(0).values


def _rms(values: Tensor) -> Tensor:
    """Over points and rows, for every output."""
    return values.square().mean((0, 1)).sqrt()


def _disagrees(
    calls: Calls,
    sources: Sources,
    rows: Rows,
    count: int,
    variances: Tensor,  # (blocks, rows, outputs)
) -> bool:
    """Whether plain samples have another variance than the gradients say, anywhere.

    Of every row and output by itself, and of all rows together.
    """
    values = _samples(calls, sources, rows, count).to(variances.dtype)
    deviations = (values - values.mean(0)).square() * (SAMPLES / (SAMPLES - 1))
    spread = deviations.mean(0)
    rounding = 20 * torch.finfo(values.dtype).eps * values.abs().amax(0)
    seen = spread > rounding.square()
    # The larger of both, so that few samples that lie close together raise no alarm.
    unit = torch.where(seen, torch.maximum(spread, variances.mean(0)), 1.0)
    by_block, by_sample = variances / unit, deviations / unit
    apart = _differs(by_block, by_sample) & seen
    together = [
        (torch.where(seen, each, 0.0).sum(1) / seen.sum(0).clamp(min=1))
        for each in (by_block, by_sample)
    ]
    return bool(apart.any() or (_differs(*together) & seen.any(0)).any())


def _differs(by_block: Tensor, by_sample: Tensor) -> Tensor:
    """Whether the averages over both differ by more than chance."""
    errors = [each.var(0) / len(each) for each in (by_block, by_sample)]
    # Samples that lie close together by chance have too small an error: at least a Gaussian's.
    error = (errors[0] + errors[1].clamp(min=2 / SAMPLES)).sqrt()
    gap = (by_block.mean(0) - by_sample.mean(0)).abs()
    return gap > ERRORS * error


def _samples(calls: Calls, sources: Sources, rows: Rows, count: int) -> Tensor:
    """Outputs at independent points: the first of every block, since blocks share nothing."""
    drawn = [z[:: sources.design.points] for z in sources.drawn(range(1000, 1000 + SAMPLES))]
    at_once = 16
    parts = [
        values_at(calls, sources, [z[start : start + at_once] for z in drawn], rows, count)
        for start in range(0, SAMPLES, at_once)
    ]
    return torch.cat(parts)
