"""Samples of a problem: noisy inputs, dropout masks, or both, all of them run as one batch.

Where both are random, pairs of passes share a mask, so that the law of total variance splits:
data_var = E[variance at a given mask] = E[(a - b)**2 / 2], model_var = the rest. The draws come
from the seed alone, and are the same for every row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from howsure.choices import choices_at
from howsure.estimators.gradients import ALL, Derivatives, Rows
from howsure.estimators.sampling import MOST_SAMPLES, Samples, sample
from howsure.estimators.softmax import is_elementwise
from howsure.estimators.variances import Variances, with_variances
from howsure.isolation import own_random_numbers
from howsure.methods.classified import certain, class_outputs, class_scores, with_temperature
from howsure.methods.dense import with_model_var
from howsure.methods.method import Fits, Method, Uses, note_without_uncertainty
from howsure.methods.modeled import with_variance_model
from howsure.noise.inputs import number_of
from howsure.posterior.temperature import ClassScores, cool
from howsure.prediction import Details, Prediction, class_dim
from howsure.probe import RANDOM, notes_on, probe_model
from howsure.problem import Layout, Probe, Problem
from howsure.progress import warm_up_allocator
from howsure.setup import Setup
from howsure.trees import is_tracing

# As many as one needs for a std within 5 %.
SAMPLES = 200
# Rows whose gradients cannot be relied on may have rare jumps, of which so many samples have few:
# they take more, up to a limit, while the std is no more precise than this.
_PRECISE, _MOST = 0.1, 16 * SAMPLES
# As many as show that an output is not flat: a part of it that one sample in ten reaches is missed
# once in 350 times.
LOOK = 56
# Pairs of mirror images of noise so many times as wide: what the noise makes a row choose once in
# 740 samples, 3 std away, they make it choose in 82 of 100 rows; once in 44 samples, in 99.
_WIDE, _WIDE_PAIRS = 2.0, 12
# A choice that changes once in 740 samples is a tenth of a variance if it moves the output by so
# many std, squared.
_RARE = 74
# Samples of which a row is compared with a call of its own.
_COMPARED = 16
# Elements of inputs that run at once.
_ELEMENTS = 2**20
# A rounding of so many std of the noise makes a std 12 % too large.
_ROUNDING = 0.5

UNCHANGED = (
    "None of {samples} noisy samples changed some outputs of {count} of {total} inputs: a std "
    "of 0 can miss rare jumps."
)
FEW = (
    "Few of the samples make most of the variance of some outputs of {count} of {total} inputs: "
    "these stds, and their `std_error`, are rough; `tolerance=0.05` takes more samples."
)
LOST = (
    "The noise is below the resolution of the inputs in {dtype}; use float64, or rescale the "
    "inputs."
)


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Some rows, given as indices, with their variances and mean by sampling."""

    rows: Tensor
    variances: Variances
    mean: Tensor


def sample_rows(problem: Problem, rows: Tensor, rare: Tensor | None = None) -> SampledRows:
    """The variances of some rows, given as indices, by sampling.

    Of all rows, `rare` are those whose jumps may be too rare for the usual number of samples.
    """
    chosen, places = _places(problem, rows)
    values: list[Tensor] = []
    least = None if rare is None else torch.where(rare, _MOST, SAMPLES)[chosen]
    with torch.no_grad():
        samples = _sample(problem, SAMPLES, chosen, values, until=_PRECISE, most=_MOST, least=least)
        outputs = torch.cat(values).to(samples.var.dtype)[:, places]
    total = samples.var[places]
    data = samples.data_var[places] if problem.sources.inputs else torch.zeros_like(total)

    def details() -> Details:
        deviations = outputs - outputs.mean(0)
        covariance = torch.einsum("nrk,nrl->rkl", deviations, deviations) / (len(outputs) - 1)
        covariance = with_variances(covariance, total)
        return Details(covariance, _linear_share(problem, deviations))

    def error() -> Tensor:
        return samples.std_error[places]

    variances = Variances(data, total - data, error, details)
    return SampledRows(rows, variances, samples.mean[places])


def replace_class_rows(
    prediction: Prediction, setup: Setup, x: Any, rows: Tensor, scores: ClassScores | None
) -> Prediction:
    """Class probabilities with those of samples for some rows, given as indices."""
    probe = setup.cached(probe_model, x)
    chosen, places = _places(Problem(setup, x, probe), rows)
    temperature = None if scores is None else scores.temperature[chosen]
    problem = _problem_of_classes(setup, x, probe, temperature)
    with torch.no_grad():
        moments = _sample(problem, SAMPLES, chosen)
    sampled = _prediction(problem, moments, moments.mean, (), is_biased=False)

    def put(name: str, whole: Prediction, part: Prediction) -> Tensor:
        value: Tensor = getattr(whole, name)
        return value.index_copy(0, rows, getattr(part, name)[places].to(value))

    names = ["data_var", "model_var"]
    names += ["mean"] if setup.prediction != "network" else []
    assert prediction.logits is not None and sampled.logits is not None
    pairs = (prediction.logits, sampled.logits)
    logits = replace(
        prediction.logits,
        **{name: put(name, *pairs) for name in names},
        error=lambda: put("std_error", *pairs),
    )
    names.append("expected_entropy")
    changes = {name: put(name, prediction, sampled) for name in names}
    error = put("std_error", prediction, sampled)
    return replace(prediction, **changes, error=error, logits=logits)


def sampled_variance_of_rows(problem: Problem, rows: Tensor) -> Tensor:  # (rows, outputs)
    """The variance of the outputs of some rows over a few further points."""
    chosen, places = _places(problem, rows)
    count = len(rows) if problem.may_choose_rows else problem.rows
    with torch.no_grad():
        values = problem(problem.independent_points(LOOK, count), chosen)
    wide = values if values.dtype == torch.float64 else values.float()
    return wide.var(0)[places]


@dataclass(frozen=True, eq=False)
class WideNoise:
    """What wide noise does to some rows.

    Attributes:
        variance: Of the outputs about those without noise, if it grew as the noise's, (rows,
            outputs).
        moves: By how much an output moves at most, squared, (rows, outputs).
        differs: Whether few numbers choose otherwise, (rows,).
    """

    variance: Tensor
    moves: Tensor
    differs: Tensor

    @classmethod
    def of(cls, outputs: Tensor, chosen: Tensor | None) -> WideNoise:
        """From outputs, and what was chosen, (points, rows, numbers); the first without noise.

        What is not known to be the same differs.
        """
        wide = outputs if outputs.dtype == torch.float64 else outputs.float()
        moves = (wide[1:] - wide[0]).square()
        differs = torch.ones(wide.shape[1], dtype=torch.bool, device=wide.device)
        if chosen is not None:
            differs = (chosen[1:] != chosen[0]).any(2).any(0)
        return cls(moves.mean(0) / _WIDE**2, moves.amax(0), differs)

    def matters_if_rare(self, variance: Tensor) -> Tensor:  # (rows, outputs) -> (rows,)
        """Whether outputs move so far that what happens once in 740 samples matters."""
        return (self.moves > _RARE * variance).any(1)

    @staticmethod
    def joined(parts: Sequence[WideNoise]) -> WideNoise:
        """All rows of several."""
        columns = (torch.cat([getattr(p, f.name) for p in parts]) for f in fields(WideNoise))
        return WideNoise(*columns)


def wide_noise(problem: Problem, rows: Tensor) -> WideNoise:
    """What wide noise does to some rows, given as indices."""
    at_once = _rows_under_wide_noise(problem)
    if problem.may_choose_rows and len(rows) > at_once:
        return WideNoise.joined([wide_noise(problem, some) for some in rows.split(at_once)])
    chosen, places = _places(problem, rows)
    count = len(rows) if problem.may_choose_rows else problem.rows
    with torch.no_grad():
        return WideNoise.of(problem(_wide_points(problem, count), chosen)[:, places], None)


def wide_noise_and_choices(problem: Problem) -> WideNoise:
    """What wide noise does to all rows, and whether few of their numbers choose otherwise."""
    if problem.probe.layout is not Layout.BATCHED:
        return _wide_noise_by_calls(problem)
    parts, at_once = [], _rows_under_wide_noise(problem)
    for start in range(0, problem.rows, at_once):
        rows = slice(start, min(start + at_once, problem.rows))
        count = rows.stop - start
        points = _wide_points(problem, count)
        size = len(points[0])
        choices = choices_at(functools.partial(problem, rows=rows), points, size * count)
        assert choices.output is not None
        chosen = choices.by_row().unflatten(0, (size, count))
        has_rows_read = choices.reads >= size * count  # Python chooses, and nobody sees what.
        parts.append(WideNoise.of(choices.output, None if has_rows_read else chosen))
    return WideNoise.joined(parts)


def _wide_noise_by_calls(problem: Problem) -> WideNoise:
    """The same with a call for each point."""
    points = _wide_points(problem, problem.rows)
    calls = [
        choices_at(problem, [z[p : p + 1] for z in points], problem.rows)
        for p in range(len(points[0]))
    ]
    outputs = torch.cat([call.output for call in calls if call.output is not None])
    chosen = [call.by_row() for call in calls]
    is_single = problem.probe.layout is Layout.SINGLE
    has_rows_read = not is_single and all(call.reads >= problem.rows for call in calls)
    if has_rows_read or len({numbers.shape for numbers in chosen}) > 1:
        return WideNoise.of(outputs, None)
    return WideNoise.of(outputs, torch.stack(chosen))


def _rows_under_wide_noise(problem: Problem) -> int:
    """How many rows run at once."""
    return max(1, _ELEMENTS // (2 * _WIDE_PAIRS * max(1, problem.elements)))


def _wide_points(problem: Problem, rows: int) -> list[Tensor]:
    """No noise, and pairs of mirror images of wide noise, of every source."""
    drawn = [_WIDE * z for z in problem.independent_points(_WIDE_PAIRS, rows)]
    return [torch.cat([torch.zeros_like(z[:1]), z, -z]) for z in drawn]


def missed_by_tangent(
    problem: Problem, at_input: Derivatives, rows: Tensor
) -> Tensor:  # (rows, outputs)
    """The rms of what the tangent at the input misses at a few further points, in std there."""
    chosen, places = _places(problem, rows)
    count = len(rows) if problem.may_choose_rows else problem.rows
    points = problem.independent_points(LOOK, count)
    with torch.no_grad():
        change = problem(points, chosen).double() - at_input.values[:1, chosen].double()
    slopes = [
        torch.einsum("krd,prd->prk", g[:, 0, chosen].double(), z.flatten(2).double())
        for g, z in zip(at_input.gradients, points, strict=True)
    ]
    missed = (change - torch.stack(slopes).sum(0)).square().mean(0)
    return (missed / change.var(0).clamp(min=torch.finfo(missed.dtype).tiny)).sqrt()[places]


def _places(problem: Problem, rows: Tensor) -> tuple[Rows, Rows]:
    """The rows that run, and which of those are meant: all run if none can be left out."""
    return (rows, ALL) if problem.may_choose_rows else (ALL, rows)


def _linear_share(problem: Problem, deviations: Tensor) -> Tensor:  # (samples, rows, outputs)
    """c_1 / Var with c_1 = |E[F(Z) Z]|^2, from products of different samples.

    Not known where dropout is sampled too, or every row has draws of its own: NaN.
    """
    samples, rows, outputs = deviations.shape
    if problem.sources.active or not problem.shares_points:
        return deviations.new_full((rows, outputs), torch.nan)
    first = same = torch.zeros_like(deviations[0])
    for normals in problem.normals(range(samples)):
        z = normals.flatten(1).to(deviations)
        first = first + torch.einsum("nrk,nd->rkd", deviations, z).square().sum(2)
        same = same + torch.einsum("nrk,n->rk", deviations.square(), z.square().sum(1))
    variance = deviations.square().sum(0) * samples
    share = (first - same) / torch.where(variance > 0, variance, 1.0)
    return torch.where(variance > 0, share.clamp(0, 1), 1.0)


def _sample(
    problem: Problem,
    samples: int,
    rows: Rows = ALL,
    outputs: list[Tensor] | None = None,
    *,
    until: float | None = None,
    most: int = MOST_SAMPLES,
    least: Tensor | None = None,
) -> Samples:
    """Samples of some rows; the outputs of the given number are added to the list.

    As many as the tolerance needs; without one, as many as make a std precise to `until`, but no
    more than `most`; in any case `least` of each row.
    """

    def draw(groups: range) -> Tensor:
        draws = problem.draw(groups, rows)
        values = problem.run(draws.count, draws.noisy, draws.masks, rows)
        if outputs is not None and groups[0] * problem.group_size < samples:
            outputs.append(values)
        return values

    return sample(
        draw,
        samples,
        size=problem.group_size,
        at_once=_at_once(problem),
        tolerance=problem.setup.tolerance or until,
        most=MOST_SAMPLES if problem.setup.tolerance else most,
        least=least,
    )


def _at_once(problem: Problem) -> int:
    """How many groups of samples run as one batch."""
    elements = sum(t.numel() for t in problem.tensors)
    elements = max(1, elements, problem.elements * problem.rows)
    return max(1, (problem.setup.chunk or _ELEMENTS // elements) // problem.group_size)


def predict_by_sampling(
    setup: Setup, x: Any, scores: ClassScores | None = None, *, is_biased: bool = False
) -> Prediction:
    """The prediction; `is_biased` divides the variance by the number of samples, as the paper."""
    probe = setup.cached(_probe, x)
    if setup.task != "regression":
        temperature = None if scores is None else scores.temperature
        problem = _problem_of_classes(setup, x, probe, temperature)
    else:
        problem = Problem(setup, x, probe)
    samples = setup.samples or SAMPLES
    if samples < 2 * problem.group_size:
        raise ValueError(
            "`samples` is too small for a variance; use at least 2, or 4 with dropout."
        )
    is_random = probe.is_random
    if is_random:
        setup.keep("draws", True)  # Who asked for the samples decides what that means.
    varies = bool(problem.sources.all) or is_random
    is_plain = setup.prediction == "network" and not is_random
    with torch.no_grad(), own_random_numbers(setup.seed) if is_random else nullcontext():
        moments = _sample(problem, samples if varies else 2 * problem.group_size)
        assert problem.structure is not None
        # What is returned besides numbers is that of a plain pass.
        needs_pass = is_plain or not problem.structure.is_tensor
        plain = problem.plain() if needs_pass else None
    notes = [*notes_on(probe, setup)]
    if is_random:
        notes.append(f"{RANDOM}; they are part of `data_var`.")
    if setup.tolerance is not None and not bool(moments.are_precise(setup.tolerance).all()):
        notes.append(
            f"Some inputs did not reach the tolerance of {setup.tolerance:g} with "
            f"{MOST_SAMPLES} samples; `std_error` says what they reached."
        )
    if not is_tracing():
        notes += note_unchanged(problem, moments.are_constant, samples)
        notes += _note_few(problem, moments)
        notes += _note_rounding(problem)
        notes += note_without_uncertainty(setup, probe, problem.sources)
    mean = plain if is_plain and plain is not None else moments.mean
    return _prediction(problem, moments, mean, tuple(notes), is_biased=is_biased)


def _problem_of_classes(setup: Setup, x: Any, probe: Probe, temperature: Tensor | None) -> Problem:
    """The model with the softmax of its logits, at their temperature, and the entropy."""
    problem = Problem(setup, x, probe)
    problem.finish = lambda out: class_outputs(
        out if temperature is None else cool(out, temperature), setup.task, entropy=True
    )
    return problem


def _probe(setup: Setup, x: Any) -> Probe:
    """How the model can be run; with samples, too, that are rows of one batch, if they may be."""
    probe = setup.cached(probe_model, x)
    if probe.layout is not Layout.BATCHED or is_tracing():
        return probe
    problem = Problem(setup, x, probe)
    with torch.no_grad():
        if not problem.rows or _stand_alone(problem, setup.samples or SAMPLES):
            return probe
    return replace(probe, layout=Layout.SINGLE, mixes_rows=True)


def _stand_alone(problem: Problem, samples: int) -> bool:
    """Whether rows among samples have the outputs that they have in a call of their own.

    A branch on the largest number of a batch, say, is taken by a batch of many samples where a row
    by itself seldom takes it, if ever.
    """
    groups = max(1, min(samples // problem.group_size, _at_once(problem)))
    draws = problem.draw(range(groups))
    # A model may write into its input, which is compared afterwards.
    copies = {number: x.clone() for number, x in draws.noisy.items()}
    together = problem.run(draws.count, copies, draws.masks)
    spread = together.var(0, correction=0).sqrt()
    eps = torch.finfo(together.dtype).eps
    for number in range(0, draws.count, -(-draws.count // _COMPARED)):
        row = number % problem.rows
        one = draws.only(number, row)
        try:
            alone = problem.run(1, one.noisy, one.masks, slice(row, row + 1))[0, 0]
        except Exception:  # A model that cannot do with one row may fail in any way.
            return True
        values = together[number, row]
        if alone.shape == values.shape:
            gap, large = (alone - values).abs(), 200 * eps * values.abs().max()
            if bool((gap > torch.maximum(0.01 * spread[row], large)).any()):
                return False
    return True


def note_unchanged(
    problem: Problem, still: Tensor, samples: int
) -> tuple[str, ...]:  # still: (rows, outputs)
    """A note where outputs of noisy rows are the same in all samples, unless they are constants."""
    sources = problem.sources
    if not sources.all or not bool(still.any()):
        return ()
    # What never changes for any input does not depend on it, unless that is all there is.
    rows = (still & ~still.all(0)).any(1) | still.all(1)
    if not sources.active:
        noises = [noise.reshape(len(noise), -1).any(1) for _, noise in _one_draw(problem)]
        rows = rows & torch.stack(noises).any(0)
    count = int(rows.sum())
    return (UNCHANGED.format(samples=samples, count=count, total=len(rows)),) if count else ()


def _note_few(problem: Problem, samples: Samples) -> tuple[str, ...]:
    """A note where few samples make the variance of an output."""
    rows = samples.rest_on_few.any(1)
    if not problem.sources.all or not bool(rows.any()):
        return ()
    return (FEW.format(count=int(rows.sum()), total=len(rows)),)


def _one_draw(problem: Problem) -> list[tuple[Tensor, Tensor]]:
    """Every noisy input, (rows, *shape), with a draw of its noise."""
    pairs = []
    for source, normals in zip(problem.sources.inputs, problem.normals(range(1)), strict=True):
        x = problem.input_rows(source.number, ALL)
        z = normals.to(x.device, problem.wide).expand(-1, len(x), *normals.shape[2:])
        pairs.append((x, source.root.apply(z, ALL)[0]))
    return pairs


def _note_rounding(problem: Problem) -> tuple[str, ...]:
    """A note where an input plus its noise is another number than that of its type."""
    if _is_far_above_rounding(problem):
        return ()
    for x, noise in _one_draw(problem):
        gap = ((x + noise).to(x.dtype) - x).to(noise.dtype) - noise
        if bool(gap.square().mean() > _ROUNDING**2 * noise.square().mean()):
            return (LOST.format(dtype=str(x.dtype).removeprefix("torch.")),)
    return ()


def _is_far_above_rounding(problem: Problem) -> bool:
    """Whether numbers as large as the largest are closer than a std of the noise, if it is one."""
    variance = number_of(problem.setup.noise)
    if variance is None:
        return not problem.sources.inputs
    std = math.sqrt(variance)
    inputs = [problem.input_rows(source.number, ALL) for source in problem.sources.inputs]
    return all(
        not x.numel() or float(x.abs().amax()) * torch.finfo(x.dtype).eps < std for x in inputs
    )


def _prediction(
    problem: Problem, samples: Samples, mean: Tensor, notes: tuple[str, ...], *, is_biased: bool
) -> Prediction:
    """The prediction in the structure of the model's output."""
    setup = problem.setup
    data, model = samples.data_var, samples.model_var
    if samples.size == 1 and setup.noise is None:
        data, model = model, data
        if is_biased:
            model = model * (1 - 1 / samples.count)
    if isinstance(setup.residual_var, Tensor) or setup.residual_var:
        data = data + setup.residual_var_at(data)
    data = data + problem.learned_variance()

    def error() -> Any:
        return problem.unflatten_variance(samples.std_error)

    if setup.task == "regression":
        return Prediction(
            problem.unflatten(mean),
            problem.unflatten_variance(data),
            problem.unflatten_variance(model),
            notes,
            error=error() if is_tracing() else error,
        )
    means = problem.split(mean)
    data_vars, model_vars, errors = (
        problem.split(flat, wide=True) for flat in (data, model, samples.std_error)
    )
    logits = Prediction(means[1], data_vars[1], model_vars[1], error=errors[1])
    expected = problem.split(samples.mean)[2]
    if not is_elementwise(means[1], setup.task):
        expected = expected.squeeze(class_dim(means[1]))
    return Prediction(
        means[0],
        data_vars[0],
        model_vars[0],
        notes,
        logits,
        expected_entropy=expected,
        error=errors[0],
    )


@torch.inference_mode(False)
def noise_sampling(setup: Setup, x: Any) -> Prediction:
    """Monte Carlo: the network on noisy inputs, with dropout masks if there is a rate.

    What assumed density filtering approximates, and what users compare it with.

    With what `fit` found about dense outputs, samples tell the sensor's part.
    """
    warm_up_allocator()
    if setup.temperature_model is not None:  # All samples of an image have its temperature.
        if setup.noise is None and not setup.has_masks(x):
            return certain(setup, x)
        scores = class_scores(setup, x)
        return with_temperature(predict_by_sampling(setup, x, scores), scores)
    if setup.variance_model is None:
        return predict_by_sampling(setup, x)
    sensor = setup.replace(variance_model=None)
    sampled = None if setup.noise is None else predict_by_sampling(sensor, x)
    if setup.variance_model.dense:
        return with_model_var(setup, x, sampled)
    return with_variance_model(setup, x, sampled)


NOISE_SAMPLING = Method(
    "noise_sampling", noise_sampling, Uses.NOISE | Uses.MODEL, Fits.RATE | Fits.DENSE_POSTERIOR
)


@torch.inference_mode(False)
def mc_dropout(setup: Setup, x: Any) -> Prediction:
    """Monte-Carlo dropout on the plain network (Gal & Ghahramani 2016).

    mean = 1/T sum f_t(x), model_var = 1/T sum (f_t(x) - mean)**2, data_var = residual_var, a
    constant.
    """
    warm_up_allocator()
    rates = setup.rates(setup.sites(x))
    if setup.samples == 1:
        raise ValueError(
            "`samples` is 1, and one sample has no variance; use at least 2, or the method "
            '"adf" without dropout.'
        )
    return predict_by_sampling(
        setup.replace(noise=None, rate=rates), x, is_biased=not setup.unbiased
    )


MC_DROPOUT = Method("mc_dropout", mc_dropout, Uses.MASKS, Fits.RATE | Fits.RESIDUAL_VAR)


def sampling_for(setup: Setup) -> Method:
    """The method that samples what a setup is unsure about."""
    return MC_DROPOUT if setup.noise is None else NOISE_SAMPLING
