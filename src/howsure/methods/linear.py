"""The linearised network: var = sum_j (d output / d x_j)**2 var_j. Needs no rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.estimators.gradients import ALL, differentiate
from howsure.estimators.variances import note_doubt
from howsure.methods import noise_sampling, sampling
from howsure.methods.gradients import why_no_gradients
from howsure.methods.method import Method, note_on_nothing
from howsure.methods.passes import Pass
from howsure.prediction import Prediction, entropy
from howsure.probe import RANDOM, notes_on, probe_model
from howsure.problem import MOST_OUTPUTS, Problem, Sources, wide_type
from howsure.setup import Setup
from howsure.trees import has_values, is_tracing

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
    probe = setup.once(probe_model, x)
    sources = replace(Sources.of(setup, x, probe.layout), sites=(), odds=())
    problem = Problem(setup, x, probe, sources)
    problem.finish = Pass(setup, x).finished if setup.task == "classification" else None
    with torch.no_grad():
        plain = problem.plain()
    reason = setup.once(_why_not, x)
    if reason is not None:
        result = noise_sampling.predict(setup.with_(samples=None, rate=None), x)
        note = f'"linear" cannot be used, so "{noise_sampling.METHOD}" was: {reason}.'
        return replace(result, method=noise_sampling.METHOD.name, notes=(note, *result.notes))
    variance = missed = torch.zeros_like(plain)
    if sources.all and problem.rows:
        variance, missed = _first_order(problem, plain)
        missed = _look_at_flat(problem, variance, missed)
        # What is not finite has no std.
        variance = torch.where(plain.isfinite(), variance, torch.nan)
    notes = (
        *notes_on(probe, setup),
        *_note_curved(plain, variance, missed),
        *note_on_nothing(setup, probe, sources),
    )
    data, nothing = variance + setup.residual_var, torch.zeros_like(variance)
    if setup.task == "regression":
        return Prediction(
            problem.unflatten(plain),
            problem.unflatten_variance(data),
            problem.unflatten_variance(nothing),
            notes,
            std_error=problem.unflatten_variance(missed),
        )
    means = problem.split(plain)
    data_vars, model_vars, errors = (
        problem.split(flat, wide=True) for flat in (data, nothing, missed)
    )
    logits = Prediction(means[1], data_vars[1], model_vars[1], notes)
    expected = entropy(means[0], dim=1 if means[0].dim() > 1 else 0)
    return Prediction(
        means[0], data_vars[0], model_vars[0], notes, logits, expected, std_error=errors[0]
    )


def _why_not(setup: Setup, x: Any) -> str | None:
    """Why the gradients at these inputs cannot be relied on; asked once for inputs of a shape."""
    probe = setup.once(probe_model, x)
    # More outputs than "gradients" takes are not checked by it either.
    if is_tracing():
        return None
    if setup.task == "classification" or probe.outputs <= MOST_OUTPUTS:
        return why_no_gradients(setup.with_(rate=None, samples=None, tolerance=None), x)
    return RANDOM if probe.is_random else None


def _first_order(problem: Problem, plain: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of the tangent, and the rms of what it misses, (rows, outputs) each."""
    outputs = plain.shape[1]
    if outputs > _MOST_OUTPUTS:
        raise ValueError(
            f"The model has {outputs} outputs per input, and this method needs a backward pass for "
            'each; use "noise_sampling" for dense outputs.'
        )
    # The first of every block, since blocks share nothing.
    points = [z[:: problem.design.points] for z in problem.points(range(_POINTS))]
    wide = wide_type(plain.dtype)
    with torch.no_grad():
        change = problem(points).to(wide) - plain.to(wide)
    variances, tangents = [], []
    for columns in torch.arange(outputs, device=plain.device).split(MOST_OUTPUTS):
        problem.columns = columns.expand(problem.rows, -1)
        derivatives = differentiate(problem, [torch.zeros_like(z[:1]) for z in points], ALL)
        slopes = [g[:, 0] for g in derivatives.gradients]  # (outputs, rows, elements)
        variances.append(torch.stack([g.square().sum(2).T for g in slopes]).sum(0))
        moves = [
            torch.einsum("krd,prd->prk", g, z.flatten(2).to(g))
            for g, z in zip(slopes, points, strict=True)
        ]
        tangents.append(torch.stack(moves).sum(0))
    problem.columns = None
    missed = (change - torch.cat(tangents, 2)).square().mean(0).sqrt()
    return torch.cat(variances, 1), missed


def _look_at_flat(problem: Problem, variance: Tensor, missed: Tensor) -> Tensor:
    """What the tangent misses; of outputs that are flat at all points, by further ones."""
    flat = (variance == 0) & (missed == 0)
    if not has_values(missed):
        note_doubt(flat)
        return missed
    rows = flat.any(1).nonzero()[:, 0]
    if not len(rows):
        return missed
    spread = sampling.spread_of_rows(problem, rows).sqrt().to(missed)
    return missed.index_copy(0, rows, torch.where(flat[rows], spread, missed[rows]))


def _note_curved(plain: Tensor, variance: Tensor, missed: Tensor) -> tuple[str, ...]:
    """A note if the tangent says little about some inputs; none in a trace."""
    if not has_values(missed):
        return ()
    rounding = 20 * torch.finfo(plain.dtype).eps * plain.abs()
    count = int((missed.square() > variance + rounding.square()).any(1).sum())
    return (CURVED.format(count=count, total=len(missed)),) if count else ()


METHOD = Method("linear", predict, may_draw=True, needs_noise=True, audited=({},))
