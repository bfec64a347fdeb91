"""The default: the variance from the network's own gradients at a few noisy points.

Any differentiable network, without rules (docs/gradients.md). The assumptions are checked on the
first call for a model; where they do not hold, the method samples and says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsure.deferred import as_is, changed
from howsure.gradients.calls import Calls, tensors_of
from howsure.gradients.checks import STEPWISE, verdict_of
from howsure.gradients.classes import varying
from howsure.gradients.estimate import Estimate, estimate, is_precise
from howsure.gradients.layout import Verdict, layout_of, require_gradients
from howsure.gradients.modelled import Modelled, modelled
from howsure.gradients.sources import Sources, values_at
from howsure.gradients.units import gradients_of_units
from howsure.gradients.variances import SHIFT, Variances, are_usual, resampled, variances_of
from howsure.methods import mc_dropout, noise_sampling
from howsure.methods.classified import certain, classified
from howsure.methods.draws import Sampled
from howsure.methods.method import Method, about_nothing
from howsure.methods.passes import check_classes
from howsure.posterior.local_error import LastLinear
from howsure.prediction import Prediction
from howsure.progress import keep_freed_memory
from howsure.setup import Setup
from howsure.trees import is_tracing

# Points unless `samples` says otherwise: two blocks of one source, one of noise at masks.
POINTS = 8
# Directions of the noise below which 8 points leave a std 12 to 30 % off, as 8 samples do.
FEW_DIMENSIONS = 6
# Points for the mean alone begin with this block.
_FURTHER = 500_000
# As many of them as points with gradients; of classes more: where the logits lie decides what the
# softmax lets through, and half of the error of a probability's std was that of their mean.
_FURTHER_SHARE, _FURTHER_SHARE_OF_CLASSES = 1, 3


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance, covariance, budget and standard error."""
    keep_freed_memory()
    if _is_certain(setup, x):
        return certain(setup, x)
    model = setup.variance_model
    watch = model is not None and model.posterior is not None
    verdict = (setup.watching(x) if watch else setup).once(verdict_of, x)
    # `fit` has seen the units' gradients; steps over the noise are a matter of these inputs.
    if model is not None and verdict.reason != STEPWISE:
        require_gradients(setup, verdict)
    elif model is None and verdict.reason is not None:
        return _sampled(setup, x, verdict)
    local = None if model is None else model.local_error
    found = examined_as(verdict, setup, x, watch=watch, features=local is not None)
    if found.logits is not None:
        return classified(setup, x, found)
    own = Modelled(found.own)
    if model is not None:
        near = None if local is None or found.features is None else local.at(found.features)
        own = modelled(found.own, found.mean, found.z, model, near)
    return _prediction(setup, found, own)


def _is_certain(setup: Setup, x: Any) -> bool:
    """Whether nothing is random but the class itself."""
    if setup.task == "regression" or setup.noise is not None:
        return False
    verdict = setup.once(layout_of, x)
    return not verdict.random and not Sources.of(setup, x, verdict.layout).names


def _sampled(setup: Setup, x: Any, verdict: Verdict) -> Prediction:
    """The prediction by sampling, with the reason."""
    # Which knows of temperatures.
    method = sampling_for(setup) if setup.temperature_model is None else noise_sampling.METHOD
    prediction = setup.prediction or "network"
    found = method.predict(setup.with_(samples=None, prediction=prediction), x)
    reason = f'"gradients" cannot be used, so "{method}" was: {verdict.reason}.'
    return replace(found, method=method.name, notes=(reason, *found.notes))


def sampling_for(setup: Setup) -> Method:
    """The method that samples what a setup is unsure about."""
    return mc_dropout.METHOD if setup.noise is None else noise_sampling.METHOD


def _prediction(setup: Setup, seen: Examined, found: Modelled) -> Prediction:
    """The prediction in the structure of the model's output; all tensors are (rows, outputs)."""
    calls = seen.calls
    assert calls.parts is not None
    own = found.variances.with_constant(setup.residual_var)
    fill, varied = calls.parts.unflatten, calls.parts.unflatten_variance

    def wide(flat: Tensor) -> Any:
        return varied(calls.shaped(flat, wide=True))

    return Prediction(
        fill(calls.shaped(seen.mean)),
        wide(own.data),
        wide(own.model),
        notes=seen.notes,
        covariance=as_is(own, "covariance"),
        sources=as_is(own, "budget"),
        linear_share=as_is(own, "linear_share"),
        std_error=wide(own.standard_error),
        novelty=None if found.novelty is None else wide(found.novelty),
        joint_novelty=found.joint,
    )


@dataclass(frozen=True, eq=False)
class LogitsSeen:
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
class Examined:
    """What the gradients say about some inputs, before it becomes a prediction.

    Attributes:
        calls: The model at these inputs.
        mean: Predictions, (rows, outputs).
        own: Variances by all that is random.
        z: Mean gradients with respect to a multiplier at every unit, (rows, outputs, masks).
        notes: What a user should know.
        features: What enters the last linear layer, (rows, units), if asked for.
        logits: More about the outputs, where they are the logits of classes.
    """

    calls: Calls
    mean: Tensor
    own: Variances
    z: Tensor | None
    notes: tuple[str, ...]
    features: Tensor | None = None
    logits: LogitsSeen | None = None


@torch.inference_mode(False)
def examined(setup: Setup, x: Any, *, watch: bool, features: bool = False) -> Examined:
    """Predictions with what the sensors and, if watched, the units do to them.

    An error if the model's gradients cannot be relied on.
    """
    verdict = (setup.watching(x) if watch else setup).once(verdict_of, x)
    require_gradients(setup, verdict)
    return examined_as(verdict, setup, x, watch=watch, features=features)


def examined_as(
    verdict: Verdict, setup: Setup, x: Any, *, watch: bool, features: bool = False
) -> Examined:
    """The same for a model of which is known how it can be run."""
    sources = Sources.of(setup, x, verdict.layout, watch=watch)
    calls = Calls(setup, x, verdict.layout, sources.sites, verdict.axes, verdict.channels_last)
    plain, entering = plain_pass(calls, features=features)
    notes = () if verdict.note is None else (verdict.note,)
    if not sources.names or not calls.count:
        notes += () if watch else about_nothing(setup, verdict, sources)
        z = gradients_of_units(calls, sources) if watch and calls.count else None
        return Examined(calls, plain, Variances.nothing(plain), z, notes, entering)
    has_classes = setup.task == "classification" and all(t.numel() for t in tensors_of(x))
    if has_classes:
        calls.check_logits()
        check_classes(plain)
        calls.columns = varying(plain)
    points = setup.samples or POINTS
    found = estimate(calls, sources, points, setup.tolerance, setup.chunk)
    own = variances_of(found)
    every = verdict.reason is not None
    if every or not are_usual(found, own, plain):
        own = resampled(found, own, Sampled(calls, sources), every=every)
        own = _judged(setup, plain, found, own)
    notes = (*notes, *own.notes, *_unreached(setup, found), *_few(setup, x))
    if has_classes:
        logits = LogitsSeen(plain, found, _means(setup, calls, found))
        return Examined(calls, plain, own, None, notes, logits=logits)
    mean = plain if setup.prediction != "mean" else _means(setup, calls, found)[0]
    return Examined(calls, mean, own, found.watched if watch else None, notes, entering)


@torch.no_grad()
def plain_pass(calls: Calls, *, features: bool) -> tuple[Tensor, Tensor | None]:
    """What the model itself says, (rows, outputs), and what enters its last linear layer."""
    if not features:
        return calls.flat(calls.plain(), 1)[0], None
    with LastLinear() as last:
        outputs = calls.plain()
    return calls.flat(outputs, 1)[0], last.features(calls.count)


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


NOT_FINITE = (
    "{count} of {total} inputs have outputs that are NaN or infinite, as they are or under the "
    "noise: their std is NaN."
)
SHIFTED = (
    "The noise moves the outputs of {count} of {total} inputs by more than {std} std on average: "
    "what the network says for the reading itself is not what it says under its noise. "
    '`prediction="mean"` predicts the latter.'
)


def _judged(setup: Setup, plain: Tensor, found: Estimate, own: Variances) -> Variances:
    """The variances without those of rows that are not finite, and what to say about rows."""
    mean, total = found.sums.values.mean, own.total
    is_finite = plain.isfinite().all(1, keepdim=True) & total.isfinite().all(1, keepdim=True)
    factor = torch.where(is_finite, 1.0, torch.nan)
    if is_tracing():
        return own.scaled(factor)
    broken = len(plain) - int(is_finite.sum())
    if broken:
        note = NOT_FINITE.format(count=broken, total=len(plain))
        own = changed(own.scaled(factor), notes=(*own.notes, note))
    # Some logits are no columns of the plain ones.
    if setup.prediction == "mean" or mean.shape != plain.shape:
        return own
    gap, rounding = (mean - plain).abs(), 20 * torch.finfo(found.dtype).eps * plain.abs()
    shifted = int((gap > SHIFT * total.sqrt() + rounding).any(1).sum())
    more = [SHIFTED.format(count=shifted, total=len(plain), std=SHIFT)] if shifted else []
    return changed(own, notes=(*own.notes, *more))


def _few(setup: Setup, x: Any) -> tuple[str, ...]:
    """A note where the usual number of points is too small for the noise."""
    directions = math.inf if is_tracing() else setup.noise_dimensions(x)
    if setup.samples or setup.tolerance or directions >= FEW_DIMENSIONS:
        return ()
    return (
        f"The noise has about {directions:.1f} independent directions, over which {POINTS} points "
        'average little: see `std_error`, and use `method="noise_sampling"` or `tolerance=0.05`.',
    )


def _unreached(setup: Setup, found: Estimate) -> tuple[str, ...]:
    """A note where the tolerance was not reached."""
    if setup.tolerance is None or is_tracing():
        return ()
    variance = found.sums.variance
    if not (missed := int((~is_precise(variance, setup.tolerance)).sum())):
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
    has_posterior=True,
    in_closed_form=True,
    audited=({}, {"samples": 32}),
)
