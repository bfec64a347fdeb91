"""The linearized network: var = sum_j (d output / d x_j)**2 var_j. Needs no rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.estimators.gradients import ALL, differentiate
from howsure.estimators.softmax import entropy_of
from howsure.estimators.variances import flag_unreliable
from howsure.methods import sampling
from howsure.methods.classified import class_outputs
from howsure.methods.gradients import CONTRADICTED, backward_failed
from howsure.methods.method import Method, Uses, note_without_uncertainty
from howsure.prediction import Prediction
from howsure.probe import RANDOM, notes_on, probe_gradients, replace_nonfinite, some_rows
from howsure.problem import MOST_OUTPUTS, Probe, Problem, Sources, wide_type
from howsure.setup import Setup
from howsure.trees import has_values, is_tracing

# One backward pass per output: beyond this, sampling is cheaper.
_MOST_OUTPUTS = 256
# Noisy points at which the network is held against its tangent: the rms of what it misses is known
# to a fifth or so.
_POINTS = 16
# A tangent that is off by so much of the std (rms) is worth a note: its std is then some 8 % too
# small, if what it misses has nothing to do with it.
_MISSED = 0.4

CURVED = (
    "The network is not linear over its noise: at {points} noisy points around the first inputs of "
    "this shape its tangent was off by up to {missed:.0%} of the std (root mean square). "
    'Use `method="gradients"` or "noise_sampling".'
)
FLAT = (
    "The network is not linear over its noise: {count} of {total} inputs have outputs that are "
    'flat at the input itself but vary under the noise. Use `method="gradients"` or '
    '"noise_sampling".'
)


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The plain prediction with the first-order variance of the sensor's noise.

    One forward pass, and one backward pass for each output. That the network is linear is looked at
    in the first call for inputs of a shape. Where gradients are hidden, it samples, and says why.
    """
    look = setup.cached(_look, x)
    if look.reason is not None:
        return _sample(setup, x, look.reason)
    problem = _problem(setup, x, look.probe)
    try:
        plain, variance = _first_order(problem)
    # The probe has run the model at such points: it is the gradients that fail.
    except (RuntimeError, TypeError) as error:
        if is_tracing() or isinstance(error, torch.OutOfMemoryError):
            raise
        return _sample(setup, x, backward_failed(error))
    notes = notes_on(look.probe, setup)
    if look.missed > _MISSED:
        notes += (CURVED.format(points=_POINTS, missed=look.missed),)
    if not _all_vary(plain, variance):
        notes += _note_flat(problem, variance)
        # What is not finite has no std.
        variance = torch.where(plain.isfinite(), variance, torch.nan)
    notes += note_without_uncertainty(setup, look.probe, problem.sources)
    constant = setup.residual_var_at(variance) + problem.learned_variance()
    has_constant = isinstance(constant, Tensor) or constant != 0
    data = variance + constant if has_constant else variance
    nothing = torch.zeros_like(variance)
    if setup.task == "regression":
        return Prediction(
            problem.unflatten(plain),
            problem.unflatten_variance(data),
            problem.unflatten_variance(nothing),
            notes,
        )
    means = problem.split(plain)
    data_vars, model_vars = (problem.split(flat, wide=True) for flat in (data, nothing))
    logits = Prediction(means[1], data_vars[1], model_vars[1], notes)
    expected = entropy_of(means[0], setup.task)
    return Prediction(means[0], data_vars[0], model_vars[0], notes, logits, expected)


@dataclass(frozen=True)
class _Look:
    """What a look at the first inputs of a shape says.

    Attributes:
        probe: How the model can be run.
        reason: Why its gradients cannot be used.
        missed: The largest rms, in std, of what the tangent misses.
    """

    probe: Probe
    reason: str | None = None
    missed: float = 0.0


def _look(setup: Setup, x: Any) -> _Look:
    """Whether there are gradients, and the network is linear; ask `setup.cached(_look, x)`."""
    bare = setup.replace(rate=None)
    probe = bare.cached(probe_gradients, x)
    if probe.is_random:
        return _Look(probe, RANDOM)
    if probe.hides_gradients:
        return _Look(probe, CONTRADICTED)
    problem = _problem(bare, x if is_tracing() else replace_nonfinite(x), probe)
    is_varied = bool(problem.sources.all) and problem.rows > 0
    if is_tracing() or not is_varied or _outputs(problem) > MOST_OUTPUTS:
        return _Look(probe)
    try:
        if _has_steps_alone(problem):
            return _Look(probe, CONTRADICTED)
        return _Look(probe, missed=_missed_share(problem))
    except (RuntimeError, TypeError):  # There is no backward pass; the call will say so.
        return _Look(probe)


def _problem(setup: Setup, x: Any, probe: Probe) -> Problem:
    """The model with the noise of its sensors alone; classes have probabilities and logits."""
    sources = replace(Sources.of(setup, x, probe.layout), sites=(), odds=())
    problem = Problem(setup, x, probe, sources)
    if setup.task != "regression":
        problem.finish = lambda output: class_outputs(output, setup.task)
    return problem


def _outputs(problem: Problem) -> int:
    return problem.probe.outputs * (2 if problem.finish else 1)


def _sample(setup: Setup, x: Any, reason: str) -> Prediction:
    """The prediction by sampling, with the reason."""
    result = sampling.noise_sampling(setup.replace(samples=None, rate=None), x)
    note = f'"linear" cannot be used, so "{sampling.NOISE_SAMPLING}" was: {reason}.'
    return replace(result, method=sampling.NOISE_SAMPLING.name, notes=(note, *result.notes))


def _has_steps_alone(problem: Problem) -> bool:
    """Whether outputs vary from point to point, and no gradient at any of them is other than 0."""
    rows, count = some_rows(problem)
    with torch.no_grad():
        values = problem(problem.points(range(2), count), rows)
    rounding = 20 * torch.finfo(values.dtype).eps * values.abs()
    if not bool(((values - values[:1]).abs() > rounding).any()):
        return False
    derivatives = differentiate(problem, problem.points(range(1), count), rows)
    return not any(bool(gradient.any()) for gradient in derivatives.gradients)


def _first_order(problem: Problem) -> tuple[Tensor, Tensor]:
    """The plain outputs and the variance of the tangent, (rows, outputs) each."""
    outputs = _outputs(problem)
    if not problem.sources.all or not problem.rows or outputs > MOST_OUTPUTS:
        with torch.no_grad():
            plain = problem.plain()
        outputs = plain.shape[1]
        if not problem.sources.all or not problem.rows:
            return plain, plain.new_zeros(plain.shape, dtype=wide_type(plain.dtype))
    if outputs > _MOST_OUTPUTS:
        raise ValueError(
            f"The model has {outputs} outputs per input, and this method needs a backward pass for "
            'each; use "noise_sampling" for dense outputs.'
        )
    if outputs <= MOST_OUTPUTS:
        derivatives = differentiate(problem, problem.zeros(), ALL)
        return derivatives.values[0], _squared_length(derivatives.gradients)
    parts, variances = [], []
    for columns in torch.arange(outputs, device=problem.device).split(MOST_OUTPUTS):
        problem.columns = columns.expand(problem.rows, -1)
        derivatives = differentiate(problem, problem.zeros(), ALL)
        parts.append(derivatives.values[0])
        variances.append(_squared_length(derivatives.gradients))
    problem.columns = None
    return torch.cat(parts, 1), torch.cat(variances, 1)


def _squared_length(gradients: list[Tensor]) -> Tensor:  # (rows, outputs)
    """Of the gradients at the input, (outputs, 1, rows, elements) for each sensor."""
    squares = [torch.linalg.vecdot(g[:, 0], g[:, 0]).T for g in gradients]
    return squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)


def _missed_share(problem: Problem) -> float:
    """The largest rms, in std, of what the tangent misses at some inputs.

    The std is off by no more than that, by the triangle inequality. Rounding is not counted.
    """
    rows, count = some_rows(problem)
    # The first of every block, since blocks share nothing.
    drawn = problem.points(range(_POINTS), count)
    points = [z[:: problem.design.points] for z in drawn]
    derivatives = differentiate(problem, [torch.zeros_like(z[:1]) for z in points], rows)
    with torch.no_grad():
        change = problem(points, rows).double() - derivatives.values.double()
    moves = [
        torch.einsum("krd,prd->prk", g[:, 0].double(), z.flatten(2).double())
        for g, z in zip(derivatives.gradients, points, strict=True)
    ]
    missed = (change - torch.stack(moves).sum(0)).square().mean(0)
    variance = _squared_length(derivatives.gradients).double()
    rounding = (20 * torch.finfo(derivatives.values.dtype).eps * derivatives.values[0]).square()
    is_visible = (missed > rounding) & (variance > 0)
    share = torch.where(is_visible, missed / torch.where(variance > 0, variance, 1.0), 0.0)
    return float(share.nan_to_num(0.0).sqrt().max())


def _all_vary(plain: Tensor, variance: Tensor) -> bool:
    """Whether no output is flat at its input, and all are finite, as a single number."""
    is_known = has_values(variance) and variance.numel() > 0
    return is_known and float((variance + 0 * plain).min()) > 0


def _note_flat(problem: Problem, variance: Tensor) -> tuple[str, ...]:
    """A note where outputs are flat at the input, and vary under the noise."""
    if not problem.sources.all or not problem.rows:
        return ()
    flat = variance == 0
    if not has_values(flat):
        flag_unreliable(flat)
        return ()
    rows = flat.any(1).nonzero()[:, 0]
    if not len(rows):
        return ()
    spread = sampling.sampled_variance_of_rows(problem, rows)
    count = int((flat[rows] & (spread > 0)).any(1).sum())
    return (FLAT.format(count=count, total=problem.rows),) if count else ()


METHOD = Method("linear", predict, Uses.MODEL)
