"""The default: the variance from the network's own gradients at a few noisy points.

Any differentiable network, without rules (docs/gradients.md). Every call judges every row by what
its passes show; rows whose gradients cannot be relied on are sampled, with a note that says why.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.estimators.gradients import (
    ALL,
    COMPARED,
    MANY_POINTS,
    Derivatives,
    Estimate,
    Rows,
    contradicts_on_lines,
    differentiate,
    estimate,
    hides_gradients,
    is_precise,
)
from howsure.estimators.softmax import is_elementwise, varying
from howsure.estimators.variances import (
    SHIFT,
    UNEXPLAINED,
    Reliability,
    Variances,
    all_rows_consistent,
    doubts,
    flag_unreliable,
)
from howsure.methods import sampling
from howsure.methods.activations import LastLinear, LayerReader
from howsure.methods.classified import (
    certain,
    check_classes,
    class_scores,
    classified,
    with_temperature,
)
from howsure.methods.method import Fits, Method, Uses, note_without_uncertainty
from howsure.methods.modeled import modeled, score_inputs
from howsure.methods.sampling import SampledRows, sample_rows
from howsure.prediction import Details, Prediction
from howsure.probe import RANDOM, notes_on, probe_gradients, probe_model, replace_nonfinite
from howsure.problem import MOST_OUTPUTS, Layout, Probe, Problem, Sources, check_outputs
from howsure.progress import warm_up_allocator
from howsure.setup import Setup
from howsure.trees import has_values, is_tracing, tensors_of

# The source of the variance that a network predicts itself.
LEARNED = "network"
# Points unless `samples` says otherwise: two blocks of one source, one of noise at multipliers.
POINTS = 8
# Directions of the noise below which 8 points leave a std 12 to 30 % off, as 8 samples do.
FEW_DIMENSIONS = 6
# Points for the mean alone begin with this block.
_FURTHER = 500_000
# As many of them as points with gradients; of classes more: where the logits lie decides what the
# softmax lets through, and half of the error of a probability's std was that of their mean.
_FURTHER_SHARE, _FURTHER_SHARE_OF_CLASSES = 1, 3

# Where one of many random numbers decides, gradients may be relied on if their tangent at the input
# misses no more than this (rms, in std).
_MISSED = 0.05
# Where few numbers bend, the variance under wide noise, as if it grew as the noise's, is so many
# times the gradients' only if there is a steep part: that of a square is 4 times.
_STEEPER = 5
# Where there are many points: of how many blocks the lines are looked at.
_LINE_BLOCKS = 4
# Rows whose short lines are looked at together.
_AT_ONCE_ON_LINES = 64
# A model hides its gradients if it does so for such a share of the rows.
_CONTRADICTED_ROWS = 0.1
# Where so much of what the slopes explain varies, and few numbers are noisy, 8 points may agree by
# chance on a variance that is 19 times too small in std (`tests/attack/test_programs.py`).
_ROUGH = 0.9
# Rows that say whether it does.
_CHECKED_ROWS = 16
# Numbers of inputs that run at once without noise: more leave the cache (DroNet, 3,000 frames of
# 200 x 200, forward and backward: 34 s with 64 at once, 24 s with 16).
_AT_ONCE = 2**19

CONTRADICTED = (
    "the gradients do not explain how the outputs change with the noise (no_grad, detach, "
    "rounding, a custom backward pass, steps, a choice such as a median, or a function as steep "
    "as a logarithm near 0)"
)
MASKED = (
    "the model's own dropout makes another variance than Gaussian multipliers, as where a maximum "
    "over dropped units is taken"
)
MOVED = (
    "alpha dropout shifts the mean, so the network without dropout is not among the networks that "
    "it samples"
)
TOO_MANY = (
    "rows influence each other, so the call is one input, with too many outputs for a backward "
    "pass each"
)
ROWS_OF_CLASSES = "`batch_dim=None`, but the model returns several rows of logits"
ROWS_MIXED = "the rows of a batch influence each other (`batch_dim=None` if a call is one input)"
RESAMPLED = (
    "{count} of {total} inputs were sampled: their gradients contradict each other or the "
    "outputs, or depend on a choice among a few noisy numbers."
)
MORE_POINTS = " With more points (`tolerance=0.05` or `samples=64`) sampling may be unnecessary."
_MORE = 'see `std_error`, and use `method="noise_sampling"` or `tolerance=0.05`.'
FEW_DIRECTIONS = (
    "The noise has about {directions:.1f} independent directions, too few for "
    f"{POINTS} points to average over: {_MORE}"
)
FEW_NUMBERS = (
    "The slopes of {count} of {total} inputs vary as much as they explain, over few noisy "
    f"numbers, where a std from {POINTS} points can be several times off: {_MORE}"
)
NOT_FINITE = (
    "{count} of {total} inputs have outputs that are NaN or infinite, as they are or under the "
    "noise: their std is NaN."
)
SHIFTED = (
    "For {count} of {total} inputs f(x) differs from E[f(x + noise)] by more than {std} standard "
    'deviations. `prediction="mean"` predicts the latter.'
)


UNDERFLOW = (
    "The variances of {count} of {total} inputs are smaller than {dtype} can hold: use float64, "
    "or an output in larger units, such as `output=lambda y: 1e12 * y`."
)


class NoGradientsError(ValueError):
    """The gradients of a model cannot be used; the message says why."""


def backward_failed(error: Exception) -> str:
    """The reason where a backward pass raises an error."""
    return f"the backward pass failed ({str(error).partition(chr(10))[0] or type(error).__name__})"


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance, covariance, budget and standard error."""
    warm_up_allocator()
    model = setup.variance_model
    if model is not None and model.note:
        return replace(sampling.noise_sampling(setup, x), method=sampling.NOISE_SAMPLING.name)
    try:
        local = None if model is None else model.local_error
        watch = model is not None and model.posterior is not None
        if _is_certain(setup, x):
            return certain(setup, x)
        probe = (setup.with_unit_multipliers(x) if watch else setup).cached(probe_gradients, x)
        outcome = _examine(setup, x, watch=watch, features=local is not None, probe=probe)
    except NoGradientsError as error:
        if model is not None:
            raise cannot_use(str(error)) from error
        return _sample_all(setup, x, str(error))
    if outcome.logits is not None:
        scores = class_scores(setup, x)
        prediction = classified(setup, outcome, scores)
        if outcome.sampled is not None:
            rows = outcome.sampled.rows
            prediction = sampling.replace_class_rows(prediction, setup, x, rows, scores)
        return _labeled(with_temperature(prediction, scores), outcome)
    problem, variances, novelty, joint = outcome.problem, outcome.variances, None, None
    if model is not None:
        z = outcome.slopes
        scores = score_inputs(
            setup,
            model.inputs_known,
            x,
            outcome.mean,
            variances.data,
            z=z,
            features=outcome.features,
        )
        parts = model.parts(scores)
        variances = modeled(variances, parts, z, model)
        if model.has_novelty:
            novelty = problem.unflatten_variance(parts.novelty.to(variances.data))
            joint = parts.joint.to(variances.data)
    variances = variances.add_constant(setup.residual_var)

    def std_error() -> Tensor:
        return problem.unflatten_variance(variances.standard_error)

    at_once = is_tracing()
    prediction = Prediction(
        problem.unflatten(outcome.mean),
        problem.unflatten_variance(variances.data),
        problem.unflatten_variance(variances.model),
        notes=outcome.notes,
        method=METHOD.name,
        batch_dim=setup.batch_dim,
        error=std_error() if at_once else std_error,
        novelty=novelty,
        joint_novelty=joint,
        degrees_of_freedom=math.inf if model is None else model.degrees_of_freedom,
        details=variances.details() if at_once else functools.cache(variances.details),
    )
    return _labeled(prediction, outcome)


def _labeled(prediction: Prediction, outcome: Outcome) -> Prediction:
    """With the name of the method that sampled, and why, where it was all sampled."""
    setup, sampled = outcome.problem.setup, outcome.sampled
    if sampled is None or len(sampled.rows) < outcome.problem.rows or setup.variance_model:
        return prediction
    method = sampling.sampling_for(setup)
    note = f'"gradients" cannot be used, so "{method}" was: {CONTRADICTED}.'

    def details() -> Details:  # Gradients that say nothing about any row say nothing about sources.
        return replace(prediction._details, budget=None)

    notes = (note, *prediction.notes)
    return replace(prediction, method=method.name, notes=notes, details=details)


def _is_certain(setup: Setup, x: Any) -> bool:
    """Whether nothing is random but the class itself: then no gradient is needed."""
    if setup.task == "regression" or setup.noise is not None:
        return False
    probe = setup.cached(probe_model, x)
    return not probe.is_random and not Sources.of(setup, x, probe.layout).all


def _sample_all(setup: Setup, x: Any, reason: str) -> Prediction:
    """The prediction by sampling, with the reason."""
    # Which knows of temperatures.
    is_plain = setup.temperature_model is None
    method = sampling.sampling_for(setup) if is_plain else sampling.NOISE_SAMPLING
    prediction = setup.prediction or ("network" if setup.task == "regression" else "mean")
    result = method.predict(setup.replace(samples=None, prediction=prediction), x)
    note = f'"gradients" cannot be used, so "{method}" was: {reason}.'
    return replace(result, method=method.name, notes=(note, *result.notes))


def cannot_use(reason: str) -> ValueError:
    """The error where a variance model cannot be fitted to, or used on, inputs of a kind."""
    return ValueError(
        f"The fitted posterior needs gradients, which cannot be used: {reason}. Fit with "
        '`model="dropout"`.'
    )


@dataclass(frozen=True, eq=False)
class Logits:
    """What class probabilities are made of: the logits themselves, the estimate and their means.

    Attributes:
        plain: What the network itself says, (rows, classes).
        estimate: About the logits that vary.
        means: E[f(x + noise)] of these by all points and by two halves, (3, rows, logits).
    """

    plain: Tensor
    estimate: Estimate
    means: Tensor


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the gradients say about some inputs, before it becomes a prediction.

    Attributes:
        problem: The model at these inputs.
        mean: Predictions, (rows, outputs).
        variances: By all that is random.
        slopes: Mean gradients with respect to a multiplier at every unit, (rows, outputs, units).
        notes: What a user should know.
        features: What enters the last linear layer, (rows, units), if asked for.
        logits: More about the outputs, where they are the logits of classes.
        sampled: The rows about which the gradients say nothing, by samples.
    """

    problem: Problem
    mean: Tensor
    variances: Variances
    slopes: Tensor | None
    notes: tuple[str, ...]
    features: Tensor | None = None
    logits: Logits | None = None
    sampled: SampledRows | None = None


@torch.inference_mode(False)
def examine(setup: Setup, x: Any, *, watch: bool, features: bool = False) -> Outcome:
    """Predictions with what the sensors and, if watched, the units do to them."""
    probe = (setup.with_unit_multipliers(x) if watch else setup).cached(probe_gradients, x)
    return _examine(setup, x, watch=watch, features=features, probe=probe)


def _examine(setup: Setup, x: Any, *, watch: bool, features: bool, probe: Probe) -> Outcome:
    """As `examine`, with a given probe."""
    check_probe(setup, probe, watch=watch)
    problem = Problem(setup, x, probe, Sources.of(setup, x, probe.layout, watch=watch))
    sources = problem.sources
    if sources.active and any(sources.sites[number].is_affine for number in sources.active):
        raise NoGradientsError(MOVED)
    has_classes = setup.task != "regression" and problem.rows > 0
    has_classes = has_classes and any(t.numel() for t in tensors_of(x))
    plain, entering = _plain_pass(problem, features=features, has_classes=has_classes)
    notes = notes_on(probe, setup)
    if not sources.all or not problem.rows:
        slopes = None
        if watch and problem.rows:
            derivatives = differentiate_at_input(problem)
            slopes = _unit_gradients(derivatives)
            plain = derivatives.values[0] if plain is None else plain
        elif plain is None:
            with torch.no_grad():
                plain = problem.plain()
        notes += () if watch else note_without_uncertainty(setup, probe, sources)
        constant = Variances.zero(plain).add_constant(problem.learned_variance(), LEARNED)
        return Outcome(problem, plain, constant, slopes, notes, entering)
    try:
        estimated = estimate(
            problem, setup.samples or POINTS, tolerance=setup.tolerance, chunk=setup.chunk
        )
    # The probe has run the model at such points: it is the gradients that fail.
    except (RuntimeError, TypeError) as error:
        if is_tracing() or isinstance(error, torch.OutOfMemoryError):
            raise
        raise NoGradientsError(backward_failed(error)) from error
    plain = estimated.plain if plain is None else plain
    variances = Variances.of(estimated, sources.all)
    sampled: SampledRows | None = None
    is_consistent = all_rows_consistent(estimated, bends=probe.bends)
    if not is_consistent or probe.hides_in_rows or _looks_at_choices(problem, estimated):
        variances, sampled = judge_rows(problem, estimated, variances)
        variances, about_rows = _notes(problem, plain, estimated, variances, sampled)
        notes += about_rows
    notes += _note_tolerance(setup, estimated)
    notes += _note_few_directions(problem, estimated, sampled)
    if has_classes:
        logits = Logits(plain, estimated, _means(problem, estimated, sampled))
        return Outcome(problem, plain, variances, None, notes, None, logits, sampled)
    mean = plain if setup.prediction != "mean" else _means(problem, estimated, sampled)[0]
    slopes = estimated.watched if watch else None
    variances = variances.add_constant(problem.learned_variance(), LEARNED)
    return Outcome(problem, mean, variances, slopes, notes, entering, sampled=sampled)


def check_probe(setup: Setup, probe: Probe, *, watch: bool = False) -> None:
    """An error if the model as a whole has no gradients that could be used."""
    if probe.is_random:
        raise NoGradientsError(RANDOM)
    is_single = probe.layout is Layout.SINGLE
    if watch and is_single and setup.batch_dim is not None:
        raise NoGradientsError(ROWS_MIXED)
    if is_single and probe.outputs > MOST_OUTPUTS and setup.task == "regression":
        raise NoGradientsError(TOO_MANY)
    if probe.hides_gradients:
        raise NoGradientsError(CONTRADICTED)
    if probe.needs_masks:
        raise NoGradientsError(MASKED)


def _plain_pass(
    problem: Problem, *, features: bool, has_classes: bool
) -> tuple[Tensor | None, Tensor | None]:
    """What the model itself says, (rows, outputs), and what enters its last linear layer.

    A pass of its own where it is needed before the points run, or where the model returns more than
    numbers; else F(0) is one more point.
    """
    probe = problem.probe
    many_classes = has_classes and probe.outputs > MOST_OUTPUTS
    plain = entering = None
    if features or many_classes or not probe.returns_floats_only:
        plain, entering = plain_pass(problem, features=features)
    outputs = probe.outputs if plain is None else plain.shape[1]
    if has_classes:
        if plain is None:
            with torch.no_grad():
                plain = problem.plain()
        task = problem.setup.task
        _check_logits(problem, elementwise=is_elementwise(plain, task))
        check_classes(plain, task)
        problem.columns = None if is_elementwise(plain, task) else varying(plain)
        outputs = plain.shape[1] if problem.columns is None else problem.columns.shape[1]
    if problem.sources.all:
        check_outputs(outputs)
    return plain, entering


@torch.no_grad()
def plain_pass(problem: Problem, *, features: bool) -> tuple[Tensor, Tensor | None]:
    """What the model itself says, (rows, outputs), and what enters its last linear layer."""
    if not features:
        return problem.plain(), None
    with LastLinear() as last:
        outputs = problem.plain()
    return outputs, last.features(problem.rows)


def _check_logits(problem: Problem, *, elementwise: bool) -> None:
    """An error if the outputs are not one row of logits for each input."""
    assert problem.structure is not None
    shapes = [tuple(out.shape) for out in problem.structure.tensors]
    if elementwise and len(shapes) == 1:
        return
    has_one_row = all(math.prod(shape) == shape[-1] for shape in shapes if shape)
    if problem.probe.layout is Layout.SINGLE and not has_one_row:
        raise NoGradientsError(ROWS_OF_CLASSES)
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise TypeError(
            "Classification needs a model that returns one tensor of logits, (batch, "
            f"classes); this one returns {shapes}. Choose it with `output=`."
        )


def judge_rows(
    problem: Problem, estimated: Estimate, variances: Variances
) -> tuple[Variances, SampledRows | None]:
    """The variances, with samples in place of estimates that contradict the outputs; and those.

    Those are rows whose outputs change otherwise than their gradients say; those with an output
    that is flat at all points, and is not at further ones; and those in which few numbers may
    choose otherwise, or have a steep part that no point has reached. A trace can only tell that
    there may be some.
    """
    if _unjudged.get():
        return variances, None
    doubt = doubts(
        estimated,
        variances.total,
        multipliers=bool(problem.sources.active),
        bends=problem.probe.bends,
    )
    if not has_values(doubt.flat):
        flag_unreliable(doubt.any)
        return variances, None
    doubtful = _doubtful_rows(problem, estimated, doubt)
    rare = torch.zeros_like(doubtful)
    bent = doubt.bent.any(1).nonzero()[:, 0]
    if len(bent):
        wide = sampling.wide_noise(problem, bent)
        variance = doubt.variance[bent]
        is_steeper = doubt.bent[bent] & (wide.variance > _STEEPER * variance + doubt.rounding[bent])
        doubtful[bent] |= is_steeper.any(1)
        rare[bent] = wide.matters_if_rare(variance)
    if _looks_at_choices(problem, estimated):
        wide = sampling.wide_noise_and_choices(problem)
        doubtful |= wide.differs
        rare |= wide.differs & wide.matters_if_rare(variances.total)
    rows = doubtful.nonzero()[:, 0]
    if not len(rows):
        return variances, None
    sampled = sample_rows(problem, rows, rare)
    return variances.replace_rows(rows, sampled.variances), sampled


_unjudged: ContextVar[bool] = ContextVar("unjudged", default=False)


@contextmanager
def without_samples() -> Iterator[None]:
    """Inside, no row is sampled: all have what their gradients say, as in an exported file."""
    token = _unjudged.set(True)
    try:
        yield
    finally:
        _unjudged.reset(token)


def _looks_at_choices(problem: Problem, estimated: Estimate) -> bool:
    """Whether rows are looked at for choices that few points cannot show.

    Many points show them, but not beside multipliers, whose variance hides what a choice does.
    """
    has_few_points = estimated.most_blocks < COMPARED or bool(problem.sources.active)
    return problem.probe.chooses and has_few_points


def is_sampled_eagerly(setup: Setup, x: Any) -> bool:
    """Whether any row is sampled for a reason that its points do not show.

    Few numbers choose otherwise under wide noise, or gradients are hidden in some rows.
    """
    problem = Problem(setup, x, setup.cached(probe_gradients, x))
    if problem.probe.hides_in_rows and bool(_hidden_rows(problem).any()):
        return True
    return problem.probe.chooses and bool(sampling.wide_noise_and_choices(problem).differs.any())


def _doubtful_rows(problem: Problem, estimated: Estimate, doubt: Reliability) -> Tensor:  # (rows,)
    """Whether the gradients of a row contradict each other or the outputs."""
    doubtful = doubt.contradicted.any(1)
    if problem.probe.hides_in_rows:
        doubtful = doubtful | _hidden_rows(problem)
    if not bool(doubt.any.any()):
        return doubtful
    rows = (doubt.suspected.any(1) & ~doubtful).nonzero()[:, 0]
    if len(rows):
        has_many = estimated.most_points >= MANY_POINTS
        blocks = min(estimated.most_blocks, _LINE_BLOCKS) if has_many else 1
        doubtful[rows] = contradicts_on_lines(problem, rows, UNEXPLAINED, blocks).any(1)
    rows = (doubt.flat.any(1) & ~doubtful).nonzero()[:, 0]
    if len(rows):
        spread = sampling.sampled_variance_of_rows(problem, rows)
        doubtful[rows] = doubt.contradicted_by(spread, rows).any(1)
    rows = (doubt.dominated.any(1) & ~doubtful).nonzero()[:, 0]
    if len(rows):
        missed = sampling.missed_by_tangent(problem, estimated.derivatives, rows)
        doubtful[rows] = (doubt.dominated[rows] & (missed > _MISSED)).any(1)
    return doubtful


def _hidden_rows(problem: Problem) -> Tensor:  # (rows,)
    """Whether a row changes over short lines otherwise than its gradients say."""
    count = problem.rows
    if not problem.may_choose_rows:
        return hides_gradients(problem, ALL, count).any(2).any(0)
    parts = []
    for start in range(0, count, _AT_ONCE_ON_LINES):
        rows = slice(start, min(start + _AT_ONCE_ON_LINES, count))
        parts.append(hides_gradients(problem, rows, rows.stop - rows.start))
    return torch.cat(parts, 1).any(2).any(0)


def why_no_gradients(setup: Setup, x: Any, *, watch: bool = False) -> str | None:
    """Why the gradients at some inputs cannot be relied on; `None` if they can.

    With `watch`, those with respect to a multiplier at every unit as well. The model is probed once
    with all that varies; then noise and multipliers are looked at apart, since the noise would
    drown what the multipliers do.
    """
    x = replace_nonfinite(x)
    varied = setup.with_unit_multipliers(x) if watch else setup
    probe = varied.cached(probe_gradients, x)
    try:
        check_probe(setup, probe, watch=watch)
    except NoGradientsError as error:
        return str(error)
    if not watch or setup.noise is None:
        return _why_contradicted(varied, x, probe)
    reason = _why_contradicted(varied.replace(noise=None), x, probe)
    return _why_contradicted(setup.replace(rate=None), x, probe) if reason is None else reason


def _why_contradicted(setup: Setup, x: Any, probe: Probe) -> str | None:
    """Why the gradients of the first rows cannot be relied on, by a default estimate of them."""
    has_classes = setup.task != "regression"
    may_choose = probe.layout is Layout.BATCHED and probe.returns_floats_only and not has_classes
    problem = _FirstRows(setup, x, probe) if may_choose else Problem(setup, x, probe)
    if not problem.sources.all or not problem.rows:
        return None
    try:
        _plain_pass(problem, features=False, has_classes=has_classes)
        estimated = estimate(problem, POINTS)
    except NoGradientsError as error:
        return str(error)
    # The probe has run the model at such points: it is the gradients that fail.
    except (RuntimeError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return backward_failed(error)
    variance = Variances.of(estimated, problem.sources.all).total
    doubt = doubts(estimated, variance, multipliers=bool(problem.sources.active))
    contradicted = int(_doubtful_rows(problem, estimated, doubt).sum())
    return CONTRADICTED if contradicted > _CONTRADICTED_ROWS * problem.rows else None


class _FirstRows(Problem):
    """A problem at a few of its rows, which say enough about the model."""

    def __init__(self, setup: Setup, x: Any, probe: Probe) -> None:
        super().__init__(setup, x, probe)
        self.rows = min(self.rows, _CHECKED_ROWS)

    def __call__(self, z: Sequence[Tensor], rows: Rows = ALL) -> Tensor:
        """The outputs, (points, rows, outputs); a slice ends at the last of the few."""
        few = slice(*rows.indices(self.rows)) if isinstance(rows, slice) else rows
        return super().__call__(z, few)


@dataclass(frozen=True, eq=False)
class AtInput:
    """What one pass shows at the inputs themselves, with a multiplier of 1 at every unit.

    Attributes:
        mean: Predictions, (rows, outputs).
        learned_var: The variance that the network predicts itself, (rows, outputs).
        slopes: Gradients with respect to the multipliers, (rows, outputs, units).
        activations: The inputs of some layers, (rows, features) each.
        features: What enters the last linear layer, (rows, features), if asked for.
    """

    mean: Tensor
    learned_var: Tensor
    slopes: Tensor
    activations: dict[str, Tensor]
    features: Tensor | None


@torch.inference_mode(False)
def examine_at_input(
    setup: Setup,
    x: Any,
    layers: Collection[str] = (),
    *,
    features: bool = False,
    probe: Probe | None = None,
) -> AtInput:
    """One forward pass without noise, and a backward pass for each output.

    Args:
        setup: The model.
        x: The inputs.
        layers: Those whose inputs are read.
        features: Whether what enters the last linear layer is read.
        probe: That of the batch of which these inputs are some rows; by default their own.
    """
    probe = setup.with_unit_multipliers(x).cached(probe_gradients, x) if probe is None else probe
    check_probe(setup, probe, watch=True)
    problem = Problem(setup, x, probe, Sources.of(setup, x, probe.layout, watch=True))
    count, numbers = problem.rows, sum(t.numel() for t in tensors_of(x))
    size = max(1, _AT_ONCE * count // max(1, numbers)) if problem.may_choose_rows else count
    means, slopes, activations, entering = [], [], [], []
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count)) if size < count else ALL
        some = len(range(count)[rows])
        with LayerReader(setup.model, layers, problem.axis, some) as reader, LastLinear() as last:
            derivatives = differentiate_at_input(problem, rows)
        means.append(derivatives.values[0])
        slopes.append(_unit_gradients(derivatives))
        activations.append(reader.inputs)
        if features:
            entering.append(last.features(len(means[-1])))
    mean = torch.cat(means)
    return AtInput(
        mean,
        torch.zeros_like(mean) + problem.learned_variance(),
        torch.cat(slopes),
        {name: torch.cat([part[name] for part in activations]) for name in activations[0]},
        torch.cat(entering) if features else None,
    )


def differentiate_at_input(problem: Problem, rows: Rows = ALL) -> Derivatives:
    """F(0) and its gradients with respect to a multiplier of 1 at every unit."""
    sites = problem.sources.sites
    count = len(rows) if isinstance(rows, Tensor) else len(range(problem.rows)[rows])
    zeros = [torch.zeros(1, count, *site.units) for site in sites]
    numbers = [z.to(problem.device, problem.wide) for z in zeros]
    bare = replace(problem.sources, inputs=())
    alone = Problem(problem.setup, problem.x, problem.probe, bare)
    alone.structure, alone.columns = problem.structure, problem.columns
    check_outputs(problem.probe.outputs)
    derivatives = differentiate(alone, numbers, rows)
    problem.structure = alone.structure
    return derivatives


def _unit_gradients(derivatives: Derivatives) -> Tensor:  # (rows, outputs, units)
    return torch.cat(derivatives.gradients, 3)[:, 0].transpose(0, 1)


def _means(
    problem: Problem, estimated: Estimate, sampled: SampledRows | None
) -> Tensor:  # (3, rows, outputs)
    """E[f(x + noise)] by the points, and further ones without gradients: by all and two halves.

    Of sampled rows, that of the samples.

    The mean is off by the even orders, which pairs of mirror images do not cancel; a forward pass
    is the cheaper way to average them.
    """
    setup, size, pair = problem.setup, problem.design.points, 2
    has_classes = setup.task != "regression"
    share = _FURTHER_SHARE_OF_CLASSES if has_classes else _FURTHER_SHARE
    blocks = range(_FURTHER, _FURTHER + share * estimated.most_blocks * size // pair)
    at_once = max(1, (setup.chunk or 2 * size) // pair)
    parts = []
    for start in range(0, len(blocks), at_once):
        points = problem.points(blocks[start : start + at_once])
        chosen = torch.arange(len(points[0])).reshape(-1, size)[:, :pair].flatten()
        with torch.no_grad():
            parts.append(problem([z[chosen] for z in points]))
    further = torch.cat(parts).to(estimated.mean.dtype)
    share = len(further) / (len(further) + estimated.points)
    by_points = [estimated.mean, *(mean for mean, _, _ in estimated.halves())]
    others = [further.mean(0), *(half.mean(0) for half in further.tensor_split(2))]
    means = [a + share * (b - a) for a, b in zip(by_points, others, strict=False)]
    if sampled is not None:
        means = [mean.index_copy(0, sampled.rows, sampled.mean.to(mean)) for mean in means]
    return torch.stack(means).to(problem.dtype)


def _notes(
    problem: Problem,
    plain: Tensor,
    estimated: Estimate,
    variances: Variances,
    sampled: SampledRows | None,
) -> tuple[Variances, tuple[str, ...]]:
    """The variances without those of rows that are not finite, and what to say about rows."""
    total, mean = variances.total, estimated.mean
    rows = len(total)
    if is_tracing():
        is_finite = plain.isfinite().all(1, keepdim=True) & total.isfinite().all(1, keepdim=True)
        return variances.scale(torch.where(is_finite, 1.0, torch.nan)), ()
    notes = []
    if sampled is not None:
        more = "" if estimated.most_blocks >= COMPARED else MORE_POINTS
        notes.append(RESAMPLED.format(count=len(sampled.rows), total=rows) + more)
    # Some logits are no columns of the plain ones.
    by_default = "network" if problem.setup.task == "regression" else "mean"
    predicts_plain = (problem.setup.prediction or by_default) == "network"
    is_comparable = predicts_plain and mean.shape == plain.shape
    gap = (mean - plain).abs() if is_comparable else torch.zeros_like(total)
    rounding = 20 * torch.finfo(estimated.dtype).eps * mean.abs()
    still = (total == 0) & (gap <= rounding)
    notes += sampling.note_unchanged(problem, still, sampling.LOOK)
    room = SHIFT * total.sqrt() + rounding - gap
    # One look at all rows; it is NaN where anything is not finite.
    least = float((room + 0 * (plain.sum(1, keepdim=True) + total)).min()) if rows else 0.0
    if least >= 0 and least < math.inf:
        return variances, tuple(notes)
    is_finite = plain.isfinite().all(1, keepdim=True) & total.isfinite().all(1, keepdim=True)
    if broken := rows - int(is_finite.sum()):
        notes.append(NOT_FINITE.format(count=broken, total=rows))
        variances = variances.scale(torch.where(is_finite, 1.0, torch.nan))
    limits = torch.finfo(total.dtype)
    lost = (room < 0) & (total < limits.tiny / limits.eps)
    if underflows := int(lost.any(1).sum()):
        dtype = str(total.dtype).removeprefix("torch.")
        notes.append(UNDERFLOW.format(count=underflows, total=rows, dtype=dtype))
    if shifted := int(((room < 0) & ~lost).any(1).sum()):
        notes.append(SHIFTED.format(count=shifted, total=rows, std=SHIFT))
    return variances, tuple(notes)


def _note_few_directions(
    problem: Problem, estimated: Estimate, sampled: SampledRows | None
) -> tuple[str, ...]:
    """A note where the usual number of points is too small for the noise."""
    setup = problem.setup
    if setup.samples or setup.tolerance or is_tracing():
        return ()
    if setup.has_correlated_noise:
        directions = setup.noise_dimensions(problem.x)
        if directions >= FEW_DIMENSIONS:
            return ()
        return (FEW_DIRECTIONS.format(directions=directions),)
    if problem.elements >= FEW_DIMENSIONS:
        return ()
    varies = (estimated.roughness > _ROUGH).any(1)
    if sampled is not None:
        varies[sampled.rows] = False
    if not (count := int(varies.sum())):
        return ()
    return (FEW_NUMBERS.format(count=count, total=len(varies)),)


def _note_tolerance(setup: Setup, estimated: Estimate) -> tuple[str, ...]:
    """A note where the tolerance was not reached."""
    if setup.tolerance is None or is_tracing():
        return ()
    variance = estimated.sums.variance
    if not (missed := int((~is_precise(variance, setup.tolerance)).sum())):
        return ()
    points = estimated.most_blocks * estimated.design.points
    return (
        f"{missed} of {len(variance.mean)} inputs did not reach the tolerance of "
        f"{setup.tolerance:g} with {points} points; `std_error` says what they reached.",
    )


METHOD = Method("gradients", predict, Uses.POINTS | Uses.MODEL, Fits.RATE | Fits.POSTERIOR)
