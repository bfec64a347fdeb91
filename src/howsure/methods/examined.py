"""What the gradients at a few points say about some inputs, before it becomes a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import ALL, Calls, Rows
from howsure.gradients.checks import verdict_of
from howsure.gradients.estimate import Estimate, estimate, is_precise
from howsure.gradients.layout import Verdict
from howsure.gradients.sources import Sources, values_at
from howsure.gradients.units import gradients_of_units
from howsure.gradients.variances import Replaced, Variances, variances_of
from howsure.masks.local_error import LastLinear
from howsure.methods.draws import LOOK, SAMPLES, few_at, sampled_at
from howsure.setup import Setup
from howsure.values.concrete import is_traced

# Points unless `samples` says otherwise: two blocks of one source, one of noise at masks.
POINTS = 8
# Points for the mean alone begin with this block.
_FURTHER = 500_000
# As many of them as points with gradients; of classes more: where the logits lie decides what the
# softmax lets through, and half of the error of a probability's std was that of their mean.
_FURTHER_SHARE, _FURTHER_SHARE_OF_CLASSES = 1, 3


@dataclass(frozen=True, eq=False)
class Examined:
    """What the gradients say about some inputs.

    Attributes:
        calls: The model at these inputs.
        mean: Predictions, (rows, outputs).
        own: Variances by all that is random.
        z: Mean gradients with respect to a multiplier at every unit, (rows, outputs, masks).
        notes: What a user should know.
        features: What enters the last linear layer, (rows, units), if asked for.
    """

    calls: Calls
    mean: Tensor
    own: Variances
    z: Tensor | None
    notes: tuple[str, ...]
    features: Tensor | None = None


@torch.inference_mode(False)
def examined(setup: Setup, x: Any, *, watch: bool, features: bool = False) -> Examined:
    """Predictions with what the sensors and, if watched, the units do to them.

    An error if the model's gradients cannot be relied on.
    """
    verdict = verdict_of(setup.watching(x) if watch else setup, x)
    require_gradients(setup, verdict)
    return examined_as(verdict, setup, x, watch=watch, features=features)


def require_gradients(setup: Setup, verdict: Verdict) -> None:
    """An error if a variance model cannot be fitted to, or used on, inputs of this kind."""
    reason = why_no_gradients(setup, verdict)
    if reason is not None:
        raise ValueError(
            f"What `fit` finds needs the network's gradients, which cannot be used: {reason}. Fit "
            'with `model="dropout"`.'
        )


def why_no_gradients(setup: Setup, verdict: Verdict) -> str | None:
    """Why the gradients do not make a variance model; `None` if they do.

    Its errors and weights are those of single inputs, which a call that mixes its rows has not.
    """
    mixes_rows = verdict.layout == "whole" and setup.batch_dim is not None
    if mixes_rows and verdict.reason is None:
        return "the rows of a batch influence each other (`batch_dim=None` if a call is one input)"
    return verdict.reason


def examined_as(
    verdict: Verdict, setup: Setup, x: Any, *, watch: bool, features: bool = False
) -> Examined:
    """The same for a model of which is known how it can be run."""
    sources = Sources.of(setup, x, verdict.layout, watch=watch)
    calls = verdict.calls(setup, x, sources)
    plain, entering = plain_pass(calls, features=features)
    if not sources.names or not calls.count:
        z = gradients_of_units(calls, sources) if watch and calls.count else None
        return Examined(calls, plain, Variances.nothing(plain), z, about(verdict), entering)
    found = estimated(setup, calls, sources)
    own = variances_of(found, Sampled(calls, sources))
    mean = plain if setup.prediction != "mean" else means_of(setup, calls, found)[0]
    notes = (*about(verdict), *own.notes, *unreached(setup, found))
    return Examined(calls, mean, own, found.watched if watch else None, notes, entering)


@torch.no_grad()
def plain_pass(calls: Calls, *, features: bool) -> tuple[Tensor, Tensor | None]:
    """What the model itself says, (rows, outputs), and what enters its last linear layer."""
    if not features:
        return calls.flat(calls.plain(), 1)[0], None
    with LastLinear() as last:
        outputs = calls.plain()
    return calls.flat(outputs, 1)[0], last.rows(calls.count)


def estimated(setup: Setup, calls: Calls, sources: Sources) -> Estimate:
    """The estimate from as many points as the setup asks for."""
    points = setup.samples or POINTS
    return estimate(calls, sources, points, setup.tolerance, setup.chunk)


@dataclass(frozen=True, eq=False)
class Sampled:
    """What plain passes say about some rows, given as indices."""

    calls: Calls
    sources: Sources

    def spread(self, rows: Tensor) -> Tensor:
        """The variance of the outputs over a few samples, (rows, outputs)."""
        chosen, own = self._places(rows)
        with torch.no_grad():
            return few_at(self.calls, self.sources, LOOK, chosen).var[own]

    def replaced(self, rows: Tensor) -> Replaced:
        """The variances by sampling."""
        chosen, own = self._places(rows)
        with torch.no_grad():
            found = sampled_at(self.calls, self.sources, SAMPLES, chosen)
        data, total, error = (each[own] for each in (found.data_var, found.var, found.std_error))
        if not self.sources.inputs:
            data = torch.zeros_like(total)
        return Replaced(data, total - data, error)

    def _places(self, rows: Tensor) -> tuple[Rows, Rows]:
        """The rows that run, and which of those are meant: all run if none can be left out."""
        return (rows, ALL) if self.calls.layout == "folded" else (ALL, rows)


def means_of(setup: Setup, calls: Calls, found: Estimate) -> Tensor:  # (3, rows, outputs)
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


def about(verdict: Verdict) -> tuple[str, ...]:
    """What there is to say about the way in which the model was run."""
    return () if verdict.note is None else (verdict.note,)


def unreached(setup: Setup, found: Estimate) -> tuple[str, ...]:
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
