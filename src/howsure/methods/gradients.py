"""The default: the variance from the network's own gradients at a few noisy points.

Any differentiable network, without rules (docs/gradients.md). The assumptions are checked on the
first call for a model; where they do not hold, the method samples and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import Calls
from howsure.gradients.checks import verdict_of
from howsure.gradients.classes import Classes, through_softmax, varying
from howsure.gradients.estimate import Estimate, estimate, is_precise
from howsure.gradients.layout import Verdict
from howsure.gradients.modelled import Modelled, modelled
from howsure.gradients.sources import Sources, values_at
from howsure.gradients.units import gradients_of_units
from howsure.gradients.variances import Replaced, Variances, variances_of, with_variances
from howsure.methods import mc_dropout, noise_sampling
from howsure.methods.draws import SAMPLES, sampled_at
from howsure.methods.method import Method
from howsure.prediction import Prediction, entropy
from howsure.setup import Setup
from howsure.values.concrete import is_traced
from howsure.values.running import keep_freed_memory
from howsure.values.trees import map_leaves

# Points unless `samples` says otherwise: two blocks of one source, one of noise at masks.
POINTS = 8
# Points for the mean alone begin with this block.
_FURTHER = 500_000
# As many of them as points with gradients; of classes more: where the logits lie decides what the
# soft-max lets through, and half of the error of a probability's std was that of their mean.
_FURTHER_SHARE, _FURTHER_SHARE_OF_CLASSES = 1, 3


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance, covariance, budget and standard error."""
    keep_freed_memory()
    verdict = verdict_of(setup, x)
    if verdict.reason is not None:
        return _sampled(setup, x, verdict)
    if setup.task == "classification":
        sources = Sources.of(setup, x, verdict.layout)
        calls = verdict.calls(setup, x, sources)
        with torch.no_grad():
            plain = calls.flat(calls.plain(), 1)[0]
        if calls.count:
            return _classified(setup, calls, sources, plain, verdict)
    found = _examined(setup, x, verdict, watch=_has_posterior(setup))
    own = modelled(found.own, found.mean, found.z, setup.variance_model)
    result = _prediction(setup, found.calls, found.mean, own, own.variances.standard_error)
    return replace(result, notes=found.notes)


@dataclass(frozen=True, eq=False)
class Examined:
    """What the gradients say about some inputs.

    Attributes:
        calls: The model at these inputs.
        mean: Predictions, (rows, outputs).
        own: Variances by all that is random.
        z: Mean gradients with respect to a multiplier at every unit, (rows, outputs, masks).
        notes: What a user should know.
    """

    calls: Calls
    mean: Tensor
    own: Variances
    z: Tensor | None
    notes: tuple[str, ...]


def _has_posterior(setup: Setup) -> bool:
    return setup.variance_model is not None and setup.variance_model.posterior is not None


@torch.inference_mode(False)
def examined(setup: Setup, x: Any, *, watch: bool) -> Examined:
    """Predictions with what the sensors and, if watched, the units do to them.

    An error if the model's gradients cannot be relied on.
    """
    verdict = verdict_of(setup, x)
    if verdict.reason is not None:
        raise ValueError(NO_POSTERIOR.format(reason=verdict.reason))
    return _examined(setup, x, verdict, watch=watch)


NO_POSTERIOR = (
    "The posterior over masks needs the network's gradients, which cannot be used: {reason}. Fit "
    'with `model="dropout"`.'
)


def _examined(setup: Setup, x: Any, verdict: Verdict, *, watch: bool) -> Examined:
    sources = Sources.of(setup, x, verdict.layout, watch=watch)
    calls = verdict.calls(setup, x, sources)
    with torch.no_grad():
        plain = calls.flat(calls.plain(), 1)[0]
    if not sources.names or not calls.count:
        z = gradients_of_units(calls, sources) if watch and calls.count else None
        return Examined(calls, plain, Variances.nothing(plain), z, _about(verdict))
    found = _estimate(setup, calls, sources)
    own = variances_of(found, partial(_replaced, calls, sources))
    mean = plain if setup.prediction != "mean" else _means(setup, calls, found)[0]
    notes = (*_about(verdict), *own.notes, *_unreached(setup, found))
    return Examined(calls, mean, own, found.watched if watch else None, notes)


def _sampled(setup: Setup, x: Any, verdict: Verdict) -> Prediction:
    """The prediction by sampling, with the reason."""
    if _has_posterior(setup):
        raise ValueError(NO_POSTERIOR.format(reason=verdict.reason))
    method = sampling_for(setup)
    found = method.predict(setup.with_(samples=None), x)
    reason = f'"gradients" cannot be used, so "{method}" was: {verdict.reason}.'
    return replace(found, method=method.name, notes=(reason, *found.notes))


def sampling_for(setup: Setup) -> Method:
    """The method that samples what a setup is unsure about."""
    return mc_dropout.METHOD if setup.noise is None else noise_sampling.METHOD


def _estimate(setup: Setup, calls: Calls, sources: Sources) -> Estimate:
    points = setup.samples or POINTS
    return estimate(calls, sources, points, setup.tolerance, setup.chunk)


def _replaced(calls: Calls, sources: Sources, rows: Tensor) -> Replaced:
    """The variances of some rows by sampling."""
    chosen = rows if calls.layout == "folded" else slice(None)
    with torch.no_grad():
        found = sampled_at(calls, sources, SAMPLES, chosen)
    own = slice(None) if calls.layout == "folded" else rows
    data, total, error = (each[own] for each in (found.data_var, found.var, found.std_error))
    if not sources.inputs:
        data = torch.zeros_like(total)
    return Replaced(data, total - data, error)


def _means(setup: Setup, calls: Calls, found: Estimate) -> Tensor:  # (3, rows, outputs)
    """E[f(x + noise)] by the points, and further ones without gradients: by all and two halves.

    The mean is off by the even orders, which pairs of mirror images do not cancel; a forward pass
    is the cheaper way to average them.
    """
    sources, values = found.sources, found.sums.values
    size, pair = sources.design.points, 2
    has_classes = setup.task == "classification"
    share = _FURTHER_SHARE_OF_CLASSES if has_classes else _FURTHER_SHARE
    further = sources.drawn(range(_FURTHER, _FURTHER + share * found.blocks * size // pair))
    chosen = torch.arange(len(further[0])).reshape(-1, size)[:, :pair].flatten()
    parts = [
        values_at(calls, sources, [z[some] for z in further], slice(None), calls.count)
        for some in chosen.split(setup.chunk or 2 * size)
    ]
    more = torch.cat(parts).to(values.mean.dtype)
    share = len(more) / (len(more) + values.count * 1.0)
    own = [values.mean, *(mean for mean, _, _ in found.halves())]
    others = [more.mean(0), *(half.mean(0) for half in more.tensor_split(2))]
    means = [a + share * (b - a) for a, b in zip(own, others, strict=False)]
    return torch.stack(means).to(calls.dtype)


def _prediction(
    setup: Setup, calls: Calls, mean: Tensor, found: Modelled, standard_error: Tensor | None
) -> Prediction:
    """The prediction in the structure of the model's output; all tensors are (rows, outputs)."""
    assert calls.parts is not None
    own = found.variances.with_constant(setup.residual_var)
    fill = calls.parts.filled

    def shaped(flat: Tensor) -> Any:
        return fill(calls.shaped(flat.to(calls.dtype)))

    variances = [
        map_leaves(lambda leaf: leaf if isinstance(leaf, Tensor) else 0.0, shaped(flat))
        for flat in (own.data, own.model)
    ]
    return Prediction(
        shaped(mean),
        *variances,
        covariance=own.covariance,
        sources=own.budget,
        linear_share=own.linear_share,
        std_error=None if standard_error is None else shaped(standard_error),
        novelty=None if found.novelty is None else shaped(found.novelty),
        joint_novelty=found.joint,
    )


def _classified(
    setup: Setup, calls: Calls, sources: Sources, plain: Tensor, verdict: Verdict
) -> Prediction:
    """Class probabilities, from the covariance of the logits; and the logits themselves."""
    calls.check_logits()
    calls.columns = columns = varying(plain)
    found = _estimate(setup, calls, sources)
    own = variances_of(found, partial(_replaced, calls, sources))
    # Noise shifts the logits, and where they lie decides how much the soft-max lets through: they
    # vary around their mean, whatever is predicted.
    means = _means(setup, calls, found)
    pushed = partial(_pushed, plain, columns, setup.seed)
    covariances = [found.data_covariance, found.model_covariance]
    if own.notes:  # Some rows were sampled.
        kept = zip(covariances, (own.data, own.model), strict=True)
        covariances = [with_variances(*each) for each in kept]
    classes = pushed(means[0], *covariances)
    is_mean = setup.prediction == "mean"
    probabilities = classes.mean if is_mean else plain.softmax(1)
    notes = (*_about(verdict), *own.notes, *_unreached(setup, found))
    centre = _among(plain, columns, means[0]) if is_mean else plain
    logits = replace(_logits(setup, own, centre, columns), notes=notes)
    return Prediction(
        probabilities,
        classes.data_var + setup.residual_var,
        classes.model_var,
        notes,
        logits,
        _expected_entropy(probabilities, classes),
        std_error=_error_of_classes(
            own, classes, [pushed(*half).std for half in _halves(found, means)]
        ),
    )


def _among(plain: Tensor, columns: Tensor | None, mean: Tensor) -> Tensor:
    """The logits with others in place of the network's, where they vary."""
    return mean if columns is None else plain.scatter(1, columns, mean)


def _pushed(
    plain: Tensor, columns: Tensor | None, seed: int, mean: Tensor, data: Tensor, model: Tensor
) -> Classes:
    """Class probabilities for moments of the logits that vary."""
    return through_softmax(_among(plain, columns, mean), data, model, columns, seed)


def _halves(found: Estimate, means: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mean, data and model covariance of the logits by two halves of the points."""
    return [(mean, *each[1:]) for mean, each in zip(means[1:], found.halves(), strict=False)]


def _logits(setup: Setup, own: Variances, centre: Tensor, columns: Tensor | None) -> Prediction:
    """The logits with their variances; those that were held fixed have none."""

    def everywhere(flat: Tensor | None) -> Any:
        if flat is None or columns is None:
            return flat
        return torch.zeros_like(centre).to(flat).scatter(1, columns, flat)

    own, whole = own.with_constant(setup.residual_var), columns is None
    data, model, error = (everywhere(f) for f in (own.data, own.model, own.standard_error))
    return Prediction(
        centre,
        data,
        model,
        covariance=own.covariance if whole else None,
        sources=own.budget if whole else None,
        linear_share=everywhere(own.linear_share),
        std_error=error,
    )


def _error_of_classes(own: Variances, classes: Classes, halves: list[Tensor]) -> Tensor:
    """Half the difference of what two halves of the blocks say; of one block as of its logits.

    What the classes of a row have in common counts as much as what each shows by itself, since two
    halves alone agree by chance too often.
    """
    if not halves:
        std = (own.data + own.model).sqrt().sum(1, keepdim=True)
        share = own.standard_error.sum(1, keepdim=True) / torch.where(std > 0, std, 1.0)
        return classes.std * share
    squares = (halves[0] - halves[1]).square() / 4
    variance = classes.std.square()
    total = variance.sum(1, keepdim=True)
    share = squares.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return ((squares + share * variance) / 2).sqrt()


def _expected_entropy(probabilities: Tensor, classes: Classes) -> Tensor:
    """E[H(p)] over the masks, to second order: H(E[p]) - sum of model variance / (2 p)."""
    smallest = torch.finfo(probabilities.dtype).tiny  # protects classes of probability 0
    disagreement = (classes.model_var / (2 * probabilities.clamp(min=smallest))).sum(1)
    return (entropy(probabilities, dim=1) - disagreement).clamp(min=0)


def _about(verdict: Verdict) -> tuple[str, ...]:
    return () if verdict.note is None else (verdict.note,)


def _unreached(setup: Setup, found: Estimate) -> tuple[str, ...]:
    """A note where the tolerance was not reached."""
    if setup.tolerance is None or is_traced():
        return ()
    variance = found.sums.variance
    missed = int((~is_precise(variance, setup.tolerance)).sum())
    if not missed:
        return ()
    points = found.blocks * found.sources.design.points
    return (
        f"{missed} of {len(variance.mean)} inputs did not reach the tolerance of "
        f"{setup.tolerance:g} with {points} points; `std_error` says what they reached.",
    )


METHOD = Method(
    "gradients",
    predict,
    may_draw=True,
    has_budget=True,
    has_rate=True,
    in_closed_form=True,
    audited=({}, {"samples": 32}),
)
