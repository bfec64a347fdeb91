"""Fits the temperature of class probabilities: a constant, and how it grows with the distance.

The constant minimises the categorical NLL of held-out labels (Guo et al. 2017). Where an input lies
further from the known ones than most held-out inputs, its temperature is higher.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from howsure.fit.folds import FEWEST, Batches
from howsure.fit.known_activations import (
    KnownActivations,
    NoDistancesError,
    Watched,
    activations,
)
from howsure.fit.labelled import PIXELS, Labelled, check_labels
from howsure.fit.options import check_count
from howsure.fit.stress import Stress, corruptions
from howsure.fit.temperature_search import TemperatureFit, TemperatureSearch
from howsure.methods.temperature import (
    GROWTH,
    Distances,
    TemperatureModel,
    grows_from,
    quantiles_of_novelty,
)
from howsure.posterior.variance_model import KNOWN
from howsure.probe import RANDOM, probe_model
from howsure.progress import progress
from howsure.setup import Setup

_RATES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# Beyond, the likelihood has no minimum that data could show.
_LOW, _HIGH = 1e-3, 1e3
# Halvings that leave a relative error of 1e-12.
_HALVINGS = 44
# How fast log T of an image grows with the log Mahalanobis distance alone. Chosen with a look at
# the conditions of `benchmarks/dense_classes.py`; fitted on `stress="images"` it is the same.
_GROWTH_OF_IMAGES = 0.5
# Held-out inputs under each corruption that nobody asked for.
_STRESSED = 500


def fit_temperature(
    setup: Setup, batches: Batches, search: TemperatureSearch
) -> tuple[Setup, TemperatureFit]:
    """The setup with the temperature model that is best for held-out data."""
    setup = setup.unfitted()
    check_count(batches, FEWEST, "temperature")
    reason = why_no_temperature(setup, batches[0][0], growth=search.growth)
    if reason is not None:
        raise ValueError(
            f'No input has a temperature of its own: {reason}; fit with `model="dropout"`.'
        )
    watched = Watched.of(setup, batches[0][0]) if search.growth else Watched((), None)
    known = _known(setup, watched, batches, search)
    held_out = _held_out(setup, watched, known, batches, show=search.show_progress)
    check_labels(held_out)
    constant = best_temperature(held_out.logits, held_out.labels)
    model = _model(constant, held_out, known, watched.notes, dense=batches[0][1].dim() > 1)
    stressed = [] if known is None else _stressed(setup, watched, known, batches, search.stress)
    if stressed:
        model = _with_best_growth(model, held_out, stressed)
    return setup.with_(temperature_model=model), _fit(model, held_out, known, stressed)


def _known(
    setup: Setup, watched: Watched, batches: Batches, search: TemperatureSearch
) -> KnownActivations | None:
    if not watched.names:
        return None
    return KnownActivations.of(setup, watched, batches, search)


def _fit(
    model: TemperatureModel,
    held_out: Labelled,
    known: KnownActivations | None,
    stressed: Sequence[Labelled],
) -> TemperatureFit:
    t, constant = model.at(held_out.logs), model.temperature
    return TemperatureFit(
        model,
        len(held_out.logs),
        0 if known is None else known.distances.count,
        known is not None and known.folds is not None,
        float((held_out.logits.argmax(1) == held_out.labels).double().mean()),
        held_out.nll(t),
        held_out.nll(constant),
        held_out.nll(1.0),
        held_out.ece(t),
        held_out.ece(1.0),
        _mean([each.nll(model.at(each.logs)) for each in stressed]),
        _mean([each.nll(constant) for each in stressed]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def why_no_temperature(setup: Setup, x: object, *, growth: bool = True) -> str | None:
    """Why inputs like this one have no temperature of their own; `None` if they have."""
    if setup.batch_dim != 0:
        return f"`batch_dim` is {setup.batch_dim}, and inputs must be along axis 0"
    # Two passes of its own: those that look into layers draw the same numbers.
    if setup.once(probe_model, x).is_random:
        return RANDOM
    try:
        if growth:
            Watched.of(setup, x)
    except NoDistancesError as error:
        return str(error)
    return None


def _held_out(
    setup: Setup,
    watched: Watched,
    known: KnownActivations | None,
    batches: Batches,
    *,
    show: bool = False,
) -> Labelled:
    """All held-out inputs, each judged by known inputs of which it is none."""
    share = max(1, PIXELS // sum(len(target) for _, target in batches))
    parts = []
    for number, (x, target) in enumerate(progress(batches, show, "fit")):
        seen = activations(setup, x, watched.names)
        nothing = seen.logits.new_zeros(len(seen.logits), 2, dtype=torch.float64)
        logs = nothing if known is None else known.logs(seen, number)
        parts.append(Labelled.of(seen.logits, target, logs, share))
    return Labelled.joined(parts)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of least categorical NLL, by halving: the NLL is convex in 1 / T.

    The slope in b = 1 / T is the mean of E[logit] - logit of the label, E by softmax(b logits).
    """
    logits = logits.double()
    own = logits.gather(1, labels.long()[:, None])[:, 0]

    def slope(log_t: float) -> float:
        p = (logits / math.exp(log_t)).softmax(1)
        return float(((p * logits).sum(1) - own).mean())

    low, high = math.log(_LOW), math.log(_HIGH)
    check_minimum(at_zero=slope(low) <= 0, at_infinity=slope(high) >= 0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) < 0 else (middle, high)
    return math.exp((low + high) / 2)


def check_minimum(*, at_zero: bool, at_infinity: bool) -> None:
    """An error if no finite temperature has the least NLL."""
    if at_zero:
        raise ValueError(
            "The held-out NLL keeps falling towards temperature 0: the labels contradict no "
            "prediction. Give more held-out data, with some mistakes in it."
        )
    if at_infinity:
        raise ValueError(
            "The held-out NLL keeps falling towards infinite temperature: the predictions are no "
            "better than chance. Do the labels belong to these inputs?"
        )


def _model(
    temperature: float,
    held_out: Labelled,
    known: KnownActivations | None,
    notes: tuple[str, ...],
    *,
    dense: bool,
) -> TemperatureModel:
    """The temperature model with the usual growth."""
    distances: Distances | None = None if known is None else known.distances
    level, quantiles = quantiles_of_novelty(held_out.logs, KNOWN)
    usual = (0.0, _GROWTH_OF_IMAGES) if dense else GROWTH
    growth = (usual[0] if distances is not None and distances.head else 0.0, usual[1])
    return TemperatureModel(
        temperature,
        held_out.logits.shape[1],
        distances,
        growth if distances is not None else (0.0, 0.0),
        held_out.logs.quantile(grows_from(dense=dense), 0).clone(),
        level,
        quantiles,
        notes,
        dense,
    )


def _stressed(
    setup: Setup,
    watched: Watched,
    known: KnownActivations,
    batches: Batches,
    stress: Stress | None,
) -> list[Labelled]:
    """The held-out inputs under each corruption, with their own labels."""
    is_auto = stress == "auto"
    if is_auto and batches[0][1].dim() > 1:  # They would find the usual growth of dense classes.
        return []
    changes = corruptions(stress, batches[0][0])
    if is_auto and changes:
        share = -(-_STRESSED // len(batches))
        batches = [(x[:share], y[:share]) for x, y in batches]
    return [
        _held_out(setup, watched, known, [(change(x), y) for x, y in batches]) for change in changes
    ]


def _with_best_growth(
    model: TemperatureModel, held_out: Labelled, stressed: Sequence[Labelled]
) -> TemperatureModel:
    """Half of the weight is on clean data, the other half on all corruptions."""

    def cost(growth: tuple[float, float]) -> float:
        tried = replace(model, growth=growth)
        each = [judged.nll(tried.at(judged.logs)) for judged in stressed]
        return held_out.nll(tried.at(held_out.logs)) + sum(each) / len(each)

    has_head = model.distances is not None and model.distances.head is not None
    first = _RATES if has_head else (0.0,)
    return replace(model, growth=min(itertools.product(first, _RATES), key=cost))
