"""The linearised network: var = sum_j (d output / d x_j)**2 var_j. Needs no rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import ALL, Calls
from howsure.gradients.checks import verdict_of
from howsure.gradients.layout import layout_of
from howsure.gradients.sources import MOST_OUTPUTS, Sources, gradients_at, values_at
from howsure.gradients.variances import note_doubt
from howsure.methods import noise_sampling
from howsure.methods.draws import Sampled
from howsure.methods.method import Method, about_nothing
from howsure.methods.passes import Pass, prediction, zeros_like_each
from howsure.moments.value import variance_dtype
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.trees import has_values

# One backward pass per output: beyond this, sampling is cheaper.
_MOST_OUTPUTS = 256
# Noisy points at which the network is held against its tangent: the rms of what it misses is known
# to a fifth or so.
_POINTS = 16

CURVED = (
    "The network is not linear over its noise: its tangent misses more than it explains for "
    '{count} of {total} inputs (`std_error`). Use `method="gradients"` or "noise_sampling".'
)


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The plain prediction with the first-order variance of the sensor's noise.

    Its std is off by at most the root mean square of what the tangent misses, by the triangle
    inequality; some noisy points measure that, and it is the `std_error`. Where gradients cannot be
    relied on, it samples, and says why.
    """
    verdict = setup.once(layout_of, x)
    sources = replace(Sources.of(setup, x, verdict.layout), sites=(), odds=())
    calls = verdict.calls(setup, x, sources)
    run = Pass(setup, x)
    calls.finish = run.finished
    with torch.no_grad():
        plain = calls.flat(calls.plain(), 1)[0]
    # More outputs than "gradients" takes are not checked by it either.
    is_checked = setup.task == "classification" or plain.shape[1] <= MOST_OUTPUTS
    reason = setup.once(verdict_of, x).reason if is_checked else verdict.reason
    if reason is not None:
        found = noise_sampling.predict(setup.with_(samples=None, rate=None), x)
        sampling = noise_sampling.METHOD.name
        note = f'"linear" cannot be used, so "{sampling}" was: {reason}.'
        return replace(found, method=sampling, notes=(note, *found.notes))
    variance = missed = torch.zeros_like(plain)
    if sources.names and calls.count:
        variance, missed = _first_order(calls, sources, plain)
        missed = _looked_at(calls, sources, variance, missed)
        # What is not finite has no std.
        variance = torch.where(plain.isfinite(), variance, torch.nan)
    run.parts = calls.parts
    run.notes = (
        *(() if verdict.note is None else (verdict.note,)),
        *_curved(plain, variance, missed),
        *about_nothing(setup, verdict, sources),
    )
    means = calls.shaped(plain)
    variances, errors = (calls.shaped(each, wide=True) for each in (variance, missed))
    found = prediction(setup, run, means, variances, zeros_like_each(variances))
    assert run.parts is not None
    stated = run.parts.unflatten_variance(errors) if setup.task == "regression" else errors[0]
    return replace(found, std_error=stated)


def _first_order(calls: Calls, sources: Sources, plain: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of the tangent, and the rms of what it misses, (rows, outputs) each."""
    outputs = plain.shape[1]
    if outputs > _MOST_OUTPUTS:
        raise ValueError(
            f"The model has {outputs} outputs per input, and this method needs a backward pass for "
            'each; use "noise_sampling" for dense outputs.'
        )
    # The first of every block, since blocks share nothing.
    points = [z[:: sources.design.points] for z in sources.drawn(range(_POINTS))]
    own = variance_dtype(plain.dtype)
    change = values_at(calls, sources, points, ALL, calls.count).to(own) - plain.to(own)
    here = [torch.zeros_like(z[:1]) for z in points]
    variances, tangents = [], []
    for columns in torch.arange(outputs, device=plain.device).split(MOST_OUTPUTS):
        calls.columns = columns.expand(calls.count, -1)
        found = gradients_at(calls, sources, here, ALL, calls.count)
        slopes = [each[:, 0] for each in found.by_source]
        variances.append(torch.stack([g.square().sum(2).T for g in slopes]).sum(0))
        moved = [
            torch.einsum("krd,pd->prk", g, z.flatten(1).to(g))
            for g, z in zip(slopes, points, strict=True)
        ]
        tangents.append(torch.stack(moved).sum(0))
    calls.columns = None
    missed = (change - torch.cat(tangents, 2)).square().mean(0).sqrt()
    return torch.cat(variances, 1), missed


def _looked_at(calls: Calls, sources: Sources, variance: Tensor, missed: Tensor) -> Tensor:
    """What the tangent misses; of outputs that are flat at all points, by further ones."""
    flat = (variance == 0) & (missed == 0)
    if not has_values(missed):
        note_doubt(flat)
        return missed
    rows = flat.any(1).nonzero()[:, 0]
    if not len(rows):
        return missed
    spread = Sampled(calls, sources).spread(rows).sqrt().to(missed)
    return missed.index_copy(0, rows, torch.where(flat[rows], spread, missed[rows]))


def _curved(plain: Tensor, variance: Tensor, missed: Tensor) -> tuple[str, ...]:
    """A note if the tangent says little about some inputs; none in a trace."""
    if not has_values(missed):
        return ()
    rounding = 20 * torch.finfo(plain.dtype).eps * plain.abs()
    count = int((missed.square() > variance + rounding.square()).any(1).sum())
    return (CURVED.format(count=count, total=len(missed)),) if count else ()


METHOD = Method("linear", predict, may_draw=True, needs_noise=True, audited=({},))
