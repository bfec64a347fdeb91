"""Whether gradients are what they say, checked on the user's own network before they are used.

The first call for a model makes all checks; a later one those for shapes that are new.

- Directional derivatives against differences of outputs: they find a gradient that is hidden by
  `no_grad`, `detach`, rounding or a backward pass of its own.
- The variance by gradients against that of plain samples: it finds steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.gradients.calls import Calls, Rows, tensors_of
from howsure.gradients.classes import varying
from howsure.gradients.layout import Verdict, finite, layout_of, some_rows
from howsure.gradients.sources import (
    MOST_OUTPUTS,
    Gradients,
    Sources,
    check_outputs,
    gradients_at,
    leaf,
    values_at,
)
from howsure.gradients.sums import block_variances
from howsure.setup import Setup
from howsure.trees import is_tracing

# Blocks of points, and plain samples, that are compared.
FEW = (4, 96)
# The same for small inputs: they cost little, and steps are not averaged out.
MANY = (16, 512)
SMALL = 2**12
# Half lengths of lines in std of the noise, whose slope is that in the middle.
STEPS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
# Longer ones, for rough networks and small noise, and at how many points their slope is taken.
LINES = ((0.3, 8), (1.0, 32), (1.0, 128))
# Largest relative difference of the two.
HIDDEN = 0.03
# The variance by gradients differs from that of samples by so many standard errors.
ERRORS = 4.0
# Samples of so many times the variance by gradients have crossed a step; the other way round, a few
# points have nearly all of it.
JUMP = 3.0

# Number of the stream of plain samples; those of the blocks of points count from 0.
_STREAM = 1000

# Rows, and how many they are.
Some = tuple[Rows, int]
# Middle and direction of lines, (lines, 1, *shape) for every source.
Lines = Sequence[tuple[Tensor, Tensor]]

HIDES = (
    "the model hides its gradient (no_grad, detach, rounding, or a backward pass of its own), or "
    "is too rough for it, as a logarithm near 0 is: outputs change with the noise and their "
    "gradients do not tell how"
)
STEPWISE = "the outputs are flat, rough or have steps: their variance is not that of gradients"
TOO_MANY = (
    "rows influence each other, so that a call is one input, and its outputs are too many for a "
    "backward pass each"
)
ROWS_OF_CLASSES = "a call is one input, and it has several rows of classes"


def verdict_of(setup: Setup, x: Any) -> Verdict:
    """The layout, and why gradients cannot be relied on; ask `setup.once(verdict_of, x)`.

    What holds for rows of one batch holds for any number of them.
    """
    verdict = setup.once(layout_of, x)
    if is_tracing() or verdict.reason is not None:
        return verdict
    axis = setup.batch_dim if verdict.layout == "folded" else None
    key = ("doubt", setup.kind_of(x, without=axis))
    if key not in setup._facts:
        setup.keep(key, _first_doubt(setup, x, verdict))
    reason = setup._facts[key]
    return verdict if reason is None else replace(verdict, reason=reason)


def _first_doubt(setup: Setup, x: Any, verdict: Verdict) -> str | None:
    x = finite(x)
    sources = Sources.of(setup, x, verdict.layout)
    calls = verdict.calls(setup, x, sources)
    # One by one: what masks cause would drown what the noise does, or the other way round.
    reasons = (_doubt(calls, each) for each in sources.kinds())
    return next((reason for reason in reasons if reason is not None), None)


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
        if calls.layout == "whole" and not calls.has_one_row:
            return ROWS_OF_CLASSES
        calls.columns = varying(plain)
    check_outputs(plain.shape[1] if calls.columns is None else calls.columns.shape[1])
    blocks, samples = _size(calls, sources, count)
    points = sources.drawn(range(blocks))
    try:
        found = gradients_at(calls, sources, points, rows, count)
    # The plain pass has worked: it is the gradients that fail.
    except (RuntimeError, TypeError, ValueError) as error:
        return f"the backward pass failed ({str(error).splitlines()[0]})"
    if _is_silent(calls, sources, points, (rows, count)):
        return None
    if _is_hidden(calls, sources, points, found, (rows, count)):
        return HIDES
    variances = block_variances(found, sources.design, len(sources.inputs))
    values = _samples(calls, sources, samples, (rows, count))
    return STEPWISE if _disagrees(values, variances) else None


def _size(calls: Calls, sources: Sources, count: int) -> tuple[int, int]:
    """How many blocks and plain samples `count` rows take."""
    # Noise at masks may have few numbers where inputs are large.
    numbers = sum(tensor.numel() for tensor in tensors_of(calls.x)) // max(1, calls.count)
    return MANY if max(sources.elements, numbers) * count <= SMALL else FEW


def _at_once(calls: Calls, sources: Sources, count: int) -> int:
    """How many points run at once: as many as there are in all blocks."""
    return _size(calls, sources, count)[0] * sources.design.points


def _is_silent(calls: Calls, sources: Sources, points: Sequence[Tensor], some: Some) -> bool:
    """Whether the noise is 0 everywhere: then nothing moves, and there is nothing to compare."""
    if sources.active:
        return False
    rows, count = some
    pairs = zip(sources.inputs, points, strict=True)
    return not any(bool(n.root.apply(leaf(z, count, calls), rows).any()) for n, z in pairs)


def _is_hidden(
    calls: Calls, sources: Sources, points: Sequence[Tensor], found: Gradients, some: Some
) -> bool:
    """Whether outputs change otherwise than the gradients say, for any output.

    `found` are the gradients at the points.

    Lines through a few points, each along a direction of its own: the difference of outputs at
    their ends is the integral of the slope. A gradient that is right agrees at one of the lengths:
    over a long line curvature and kinks blur the integral, over a short one rounding the
    difference. One that hides a part agrees at none.
    """
    size = sources.design.points
    # Four points of the first block; with masks, noise and masks differ. The points of the next
    # block are independent directions.
    spaced = slice(0, size, size // 3)
    lines = [(z[:size][spaced], z[size : 2 * size][spaced]) for z in points]
    centre = _along(found.at(slice(0, size)).at(spaced), lines)[0]
    seen = agreed = torch.zeros(centre.shape[2], dtype=torch.bool, device=centre.device)
    for step in STEPS:
        clear, close, _ = _compared(calls, sources, lines, step, centre, some)
        seen, agreed = seen | clear, agreed | close
        if bool(agreed.all()):
            return False
    for number, (length, nodes) in enumerate(LINES):
        # Long lines take many backward passes: only of outputs that are open.
        left = (~agreed).nonzero()[:, 0]
        with _outputs(calls, left):
            slope = _slopes(calls, sources, lines, length, nodes, some)
            clear, close, far = _compared(calls, sources, lines, length, slope, some)
        # More points on a line bring a right gradient closer by a factor of a few, no more.
        if number > 0 and bool(far.any()):
            return True
        seen[left], agreed[left] = seen[left] | clear, close
        if bool(agreed.all()):
            return False
    return bool((seen & ~agreed).any())


def _compared(
    calls: Calls, sources: Sources, lines: Lines, length: float, slope: Tensor, some: Some
) -> tuple[Tensor, Tensor, Tensor]:  # (outputs,) each
    """Whether a change can be seen beyond rounding, is what the slope says, or far from it."""
    ends = _values(calls, sources, lines, (length, -length), some)
    change = ((ends[0] - ends[1]) / (2 * length)).to(slope.dtype)
    rounding = 20 * torch.finfo(ends[0].dtype).eps * ends[0].abs().amax((0, 1)) / length
    is_clear = rounding <= HIDDEN * torch.maximum(_rms(change), _rms(slope)) / 3
    gap, most = _usual(change - slope), HIDDEN * _rms(change) + rounding
    return is_clear, is_clear & (gap <= most), is_clear & (gap > 5 * most)


@contextmanager
def _outputs(calls: Calls, chosen: Tensor) -> Iterator[None]:
    """Only some of the outputs count inside."""
    before, count = calls.columns, max(1, calls.count)
    calls.columns = chosen.expand(count, -1) if before is None else before[:, chosen]
    try:
        yield
    finally:
        calls.columns = before


def _values(
    calls: Calls, sources: Sources, lines: Lines, places: Sequence[float], some: Some
) -> Tensor:  # (places, lines, rows, outputs)
    found = values_at(calls, sources, _on(lines, places), *some)
    return found.unflatten(0, (len(places), -1))


def _on(lines: Lines, places: Sequence[float]) -> list[Tensor]:  # (places * lines, 1, *shape)
    """Points on all lines, place by place, of every source."""
    return [torch.cat([z + at * along for at in places]) for z, along in lines]


def _slopes(
    calls: Calls, sources: Sources, lines: Lines, length: float, nodes: int, some: Some
) -> Tensor:  # (lines, rows, outputs)
    """The average slope of each line, by Gauss-Legendre quadrature."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    total: Any = 0.0
    together = max(1, _at_once(calls, sources, some[1]) // len(lines[0][0]))
    for start in range(0, nodes, together):
        own = slice(start, start + together)
        at = _on(lines, (length * places[own]).tolist())
        found = gradients_at(calls, sources, at, *some)
        slopes = _along(found, lines)
        share = torch.as_tensor(weights[own] / 2).to(slopes)
        total = total + torch.einsum("n,nprk->prk", share, slopes)
    return total


def _along(found: Gradients, lines: Lines) -> Tensor:  # (places, lines, rows, outputs)
    """The slopes of the lines at places on them, in the order of `_on`."""
    parts = []
    for gradient, (_, along) in zip(found.by_source, lines, strict=True):
        by_place = gradient.unflatten(1, (-1, len(along)))
        parts.append(torch.einsum("knprd,pd->nprk", by_place, along.flatten(1).to(gradient)))
    return torch.stack(parts).sum(0)


def _usual(values: Tensor) -> Tensor:
    """The median size over points and rows: a kink between two ends spoils some, hiding all."""
    return values.abs().flatten(0, 1).median(0).values


def _rms(values: Tensor) -> Tensor:
    """Over points and rows, for every output."""
    return values.square().mean((0, 1)).sqrt()


def _disagrees(values: Tensor, variances: Tensor) -> bool:  # (samples or blocks, rows, outputs)
    """Whether plain samples have another variance than the gradients say, anywhere.

    Of every row and output by itself, and of all rows together.
    """
    # Outputs of few bits vary by their rounding too, of which gradients know nothing.
    rounded = (torch.finfo(values.dtype).eps * values.abs().amax(0)).to(variances) ** 2 / 12
    values = values.to(variances.dtype)
    deviations = (values - values.mean(0)).square() * (len(values) / (len(values) - 1))
    spread = deviations.mean(0)
    rounding = 20 * torch.finfo(values.dtype).eps * values.abs().amax(0)
    seen = spread > rounding.square()
    # The larger of both, so that few samples that lie close together raise no alarm.
    unit = torch.where(seen, torch.maximum(spread, variances.mean(0)), 1.0)
    compared = variances / unit, deviations / unit, (rounded / unit)[None]
    # A step that few samples cross makes their variance large and its own error too.
    jumps = spread > JUMP * variances.mean(0)
    # The other way round for most rows; a kink that few points cross is a matter of single ones.
    rough = ((variances.mean(0) > JUMP * spread) & seen).float().mean(0) > 0.5
    apart = (jumps | rough | _differs(*compared)) & seen
    together = [
        (torch.where(seen, each, 0.0).sum(1) / seen.sum(0).clamp(min=1)) for each in compared
    ]
    return bool(apart.any() or (_differs(*together) & seen.any(0)).any())


def _differs(by_block: Tensor, by_sample: Tensor, rounded: Tensor) -> Tensor:
    """Whether the averages over both differ by more than chance and rounding."""
    errors = [each.var(0) / len(each) for each in (by_block, by_sample)]
    # Samples that lie close together by chance have too small an error: at least a Gaussian's.
    error = (errors[0] + errors[1].clamp(min=2 / len(by_sample))).sqrt()
    gap = (by_block.mean(0) - by_sample.mean(0)).abs()
    return gap > ERRORS * error + rounded[0]


def _samples(calls: Calls, sources: Sources, samples: int, some: Some) -> Tensor:
    """Outputs at independent points."""
    together = _at_once(calls, sources, some[1])
    pieces = zip(*(z.split(together) for z in sources.alone(samples, _STREAM)), strict=True)
    return torch.cat([values_at(calls, sources, points, *some) for points in pieces])
