"""Fits the temperature of class probabilities: a constant, and how it grows with the distance.

The constant minimizes the categorical NLL of held-out labels (Guo et al. 2017), of probabilities
that are averaged over the stated noise as those of predictions are. Where an input lies further
from the known ones than most held-out inputs, its temperature is higher.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from howsure.errors import warn
from howsure.estimators.softmax import class_logits, is_elementwise
from howsure.fit.held_out import Batches, check_count
from howsure.fit.known import FEWEST, Layers, NoDistancesError, gather_known
from howsure.fit.labeled import PIXELS, Labeled, check_labels, recognize_task
from howsure.fit.options import FitOptions
from howsure.fit.stress import Stress, corruptions
from howsure.methods.activations import read
from howsure.methods.classified import check_classes
from howsure.noise.inputs import sample_of
from howsure.posterior.cross_fit import CrossFit
from howsure.posterior.distances import Distances
from howsure.posterior.novelty import KNOWN, LEVELS, quantile_at, quantiles_of
from howsure.posterior.scores import log_distances
from howsure.posterior.temperature import (
    GROWTH,
    TemperatureModel,
    best_temperature,
    energy_of,
    novelty_score,
    threshold_quantile,
    weigh_energy,
)
from howsure.probe import RANDOM, probe_model
from howsure.progress import progress
from howsure.settings import Task
from howsure.setup import Setup

_RATES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# How fast log T of an image grows with the log Mahalanobis distance alone. Chosen with a look at
# the conditions of `benchmarks/dense_classes.py`; fitted on `stress="images"` it is the same.
_GROWTH_OF_IMAGES = 0.5
# Held-out inputs under each corruption of the default.
_STRESSED = 500
# Draws of the noise over which the probabilities of a held-out input are averaged. Where noise is
# most of the uncertainty, 16 lose 0.004 of the NLL, and 8 0.03.
_DRAWS = 16
# By how much averaging over the noise may raise the NLL before a note says so.
_WORTH_A_NOTE = 0.02
# Below this share of the temperature without noise, the probabilities would be those of the noise
# alone: exactly 0 and 1 wherever no draw changes the class.
_NOISE_EXPLAINS = 0.1
LIKE_PROBABILITIES = (
    "All outputs are between 0 and 1, as probabilities are. The task {task!r} applies the sigmoid "
    "itself, so give logits: `output=torch.logit` if the model has none."
)
NOISE_EXPLAINS = (
    "The stated noise alone explains the mistakes on the held-out data, so the average over the "
    "noise does not determine a temperature; that of the network without noise is used."
)
WORSE_AVERAGED = (
    "Averaged over the stated noise, the probabilities have an NLL of {averaged:.3f} on held-out "
    'data; those of the network itself have {plain:.3f} (`prediction="network"`). The average can '
    "be the worse one for a network that was trained without noise."
)
ALL_RIGHT = (
    "All held-out predictions are right, which does not determine a temperature: it stays at 1. "
    "Give more held-out data, with some mistakes in it."
)


@dataclass(frozen=True, eq=False, repr=False)
class TemperatureFit:
    """The result of a fit, and its quality on the held-out data.

    Attributes:
        model: The temperature model.
        task: Classification, or what the labels show it to be.
        count: Held-out inputs.
        known: Inputs to which distances are taken.
        cross_fitted: Whether these were the held-out ones, in folds.
        accuracy: Of the network.
        nll: Mean categorical NLL of the held-out labels.
        constant_nll: At the constant temperature.
        plain_nll: At temperature 1: that of the network itself.
        ece: Expected calibration error, a share of 1.
        plain_ece: At temperature 1.
        stressed_nll: Mean NLL on the corrupted inputs, where there were any.
        constant_stressed_nll: At the constant temperature.

    Examples:
        >>> model, x = nn.Linear(3, 2).eval(), torch.randn(200, 3)
        >>> target = model(x).softmax(1).multinomial(1).flatten()
        >>> sure = hs.Uncertain(model, task="classification")
        >>> found = sure.fit(x, target, show_progress=False)
        >>> type(found).__name__, found.count
        ('TemperatureFit', 200)
    """

    model: TemperatureModel
    task: Task
    count: int
    known: int
    cross_fitted: bool
    accuracy: float
    nll: float
    constant_nll: float
    plain_nll: float
    ece: float
    plain_ece: float
    stressed_nll: float | None = None
    constant_stressed_nll: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What was found as plain data, without the known inputs themselves."""
        model = self.model
        return {
            "temperature": model.temperature,
            "growth": list(model.growth),
            "thresholds": model.thresholds.tolist(),
            "layers": [] if model.distances is None else list(model.distances.wanted),
            "novelty_quantiles": {level: quantile_at(model.quantiles, level) for level in LEVELS},
            "notes": list(model.notes),
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"},
        }

    def __repr__(self) -> str:
        """The temperature, the NLL and what it was found on, in one line."""
        words = f"temperature {self.model.temperature:.3g}, NLL {self.nll:.3f}"
        return f"TemperatureFit({words}, {self.count} inputs)"

    def __str__(self) -> str:
        """What was fitted and on what, in words."""
        lines = [
            f"temperature {self.model.temperature:.4g} fitted on {self.count} held-out inputs: NLL "
            f"{self.constant_nll:.4f} (network itself: {self.plain_nll:.4f}), accuracy "
            f"{100 * self.accuracy:.1f} %",
            f"calibration error (ECE) {100 * self.ece:.1f} % (network itself: "
            f"{100 * self.plain_ece:.1f} %)",
            *self._distances(),
            *self.model.notes,
        ]
        if self.stressed_nll is not None:
            lines.append(
                f"NLL on corrupted held-out inputs {self.stressed_nll:.4f} (constant temperature: "
                f"{self.constant_stressed_nll:.4f})"
            )
        return "\n".join(lines)

    def _distances(self) -> list[str]:
        distances = self.model.distances
        if distances is None:
            return []
        where = "held-out inputs, in five folds" if self.cross_fitted else "unlabeled inputs"
        by_neighbors, by_mahalanobis = self.model.growth
        if by_neighbors == by_mahalanobis == 0:
            return [f"the temperature does not depend on the distance from {self.known} {where}"]
        weights = f"{by_mahalanobis:g} (Mahalanobis, {len(distances.layers)} layers)"
        if distances.neighbors is not None:
            kept = len(distances.neighbors)
            weights = f"{by_neighbors:g} (6th of {kept} neighbors) and {weights}"
        level = 100 * threshold_quantile(dense=self.model.dense)
        return [
            f"the temperature grows with the distance from {self.known} {where}: NLL "
            f"{self.nll:.4f}",
            f"beyond its {level:.0f} % quantile, with weights {weights}",
        ]


def fit_temperature(
    setup: Setup, batches: Batches, options: FitOptions, *, growth: bool = True
) -> tuple[Setup, TemperatureFit]:
    """The setup with the temperature model that is best for held-out data.

    With `growth` the temperature grows with the distance from the known inputs.
    """
    setup, show = setup.without_fit(), options.show_progress
    check_count(batches, FEWEST, "temperature")
    x, y = batches[0]
    try:
        layers = _find_layers(setup, x, growth=growth)
    except NoDistancesError as error:
        raise ValueError(
            f'A temperature for each input is not possible: {error}; fit with `model="dropout"`.'
        ) from error
    logits = read(setup, x, ()).logits
    setup, dense = setup.replace(task=recognize_task(setup.task, logits, y)), logits.dim() > 2
    check_classes(logits, setup.task)
    known = None
    if layers.names:
        inputs = options.train_inputs
        known = gather_known(setup, layers, batches, inputs, gradients=False, show=show).distances
    held_out = _read(setup, known, batches, show=show)
    check_labels(held_out, setup.task)
    if is_elementwise(logits, setup.task) and bool(((logits >= 0) & (logits <= 1)).all()):
        warn(LIKE_PROBABILITIES.format(task=setup.task))
    averaged = held_out
    if setup.noise is not None and setup.prediction != "network":
        averaged = _average(setup, held_out, batches)
    plain = best_temperature(held_out.logits, held_out.labels) or 1.0
    model = _usual_model(held_out, known, plain, dense=dense)
    stressed = []
    # Those of images would find the usual growth of dense classes.
    if known is not None and not (dense and options.stress == "auto"):
        stressed = _stress(setup, known, batches, options.stress)
    if stressed:
        model = _with_best_growth(model, held_out, stressed)
    constant, notes = best_temperature(averaged.logits, averaged.labels), [*layers.notes]
    if constant is None:
        warn(ALL_RIGHT)
        constant = 1.0
    if constant < _NOISE_EXPLAINS * plain:
        constant = plain
        notes.append(NOISE_EXPLAINS)
    constant_nll, network_nll = averaged.nll(constant), held_out.nll(plain)
    if constant_nll - network_nll > _WORTH_A_NOTE:
        notes.append(WORSE_AVERAGED.format(averaged=constant_nll, plain=network_nll))
    model = replace(model, temperature=constant, notes=tuple(notes))
    t = model.at(held_out.logs)
    fit = TemperatureFit(
        model,
        task=setup.task,
        count=len(held_out.logs),
        known=0 if known is None else known.whole.count,
        cross_fitted=known is not None and known.folds is not None,
        accuracy=held_out.accuracy,
        nll=averaged.nll(t),
        constant_nll=constant_nll,
        plain_nll=held_out.nll(1.0),
        ece=averaged.ece(t),
        plain_ece=held_out.ece(1.0),
        stressed_nll=_mean([part.nll(model.at(part.logs)) for part in stressed]),
        constant_stressed_nll=_mean([part.nll(constant) for part in stressed]),
    )
    return setup.replace(temperature_model=model), fit


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def why_no_temperature(setup: Setup, x: object) -> str | None:
    """Why inputs like this one have no temperature of their own; `None` if they have."""
    try:
        _find_layers(setup, x)
    except NoDistancesError as error:
        return str(error)
    return None


def _find_layers(setup: Setup, x: object, *, growth: bool = True) -> Layers:
    """The layers whose inputs have distances; an error if inputs have no temperature of their own.

    Without `growth` there is one temperature, and no layer is needed.
    """
    if setup.batch_dim != 0:
        raise NoDistancesError(f"`batch_dim` is {setup.batch_dim}, and inputs must be along axis 0")
    # Two passes of its own: those that look into layers draw the same numbers.
    if setup.cached(probe_model, x).is_random:
        raise NoDistancesError(RANDOM)
    return Layers.of(setup, x) if growth else Layers()


def _read(
    setup: Setup, known: CrossFit[Distances] | None, batches: Batches, *, show: bool = False
) -> Labeled:
    """All held-out inputs, each judged by known inputs of which it is none."""
    parts, layers = [], () if known is None else known.whole.wanted
    for number, (x, labels) in enumerate(progress(batches, show, "fit")):
        activations = read(setup, x, layers)
        logits = activations.logits
        logs = logits.new_zeros(len(logits), 2, dtype=torch.float64)
        if known is not None:
            logs = log_distances(known, activations.inputs, len(logits), number)
        energy = energy_of(class_logits(logits, setup.task))
        given = (labels, logs, energy)
        parts.append(Labeled.of([logits], *given, task=setup.task, share=_positions(batches)))
    return Labeled.join(parts)


def _positions(batches: Batches) -> int:
    """How many pixels or tokens of every input are looked at."""
    return max(1, PIXELS // sum(len(labels) for _, labels in batches))


def _average(setup: Setup, held_out: Labeled, batches: Batches) -> Labeled:
    """The held-out inputs with their logits at several draws of the noise."""
    generator, parts = torch.Generator().manual_seed(setup.seed), []
    for x, labels in batches:
        draws = [
            read(setup, sample_of(setup.noise, x, generator, batch_dim=0), ()).logits
            for _ in range(_DRAWS)
        ]
        nothing = torch.zeros(len(labels), 2), torch.zeros(len(labels))
        share = _positions(batches)
        parts.append(Labeled.of(draws, labels, *nothing, task=setup.task, share=share))
    return replace(held_out, logits=Labeled.join(parts).logits)


def _usual_model(
    held_out: Labeled, known: CrossFit[Distances] | None, temperature: float, *, dense: bool
) -> TemperatureModel:
    """The temperature model with the usual growth."""
    logs, distances = held_out.logs, None if known is None else known.whole
    growth = (0.0, 0.0)
    if distances is not None:
        usual = (0.0, _GROWTH_OF_IMAGES) if dense else GROWTH
        growth = (usual[0] if distances.head else 0.0, usual[1])
    energy = weigh_energy(logs, held_out.energy)
    score = novelty_score(logs, held_out.energy, energy)
    level = float(score.quantile(KNOWN))
    return TemperatureModel(
        temperature,
        classes=held_out.logits.shape[2],
        distances=distances,
        growth=growth,
        thresholds=logs.quantile(threshold_quantile(dense=dense), 0).clone(),
        energy=energy,
        known=level,
        quantiles=(quantiles_of(score) - level).exp(),
        dense=dense,
    )


def _stress(
    setup: Setup, known: CrossFit[Distances], batches: Batches, stress: Stress | None
) -> list[Labeled]:
    """The held-out inputs under each corruption, with their own labels."""
    changes = corruptions(stress, batches[0][0])
    if stress == "auto" and changes:
        share = -(-_STRESSED // len(batches))
        batches = [(x[:share], y[:share]) for x, y in batches]
    return [_read(setup, known, [(change(x), y) for x, y in batches]) for change in changes]


def _with_best_growth(
    model: TemperatureModel, held_out: Labeled, stressed: Sequence[Labeled]
) -> TemperatureModel:
    """Half of the weight is on clean data, the other half on all corruptions."""

    def cost(growth: tuple[float, float]) -> float:
        tried = replace(model, growth=growth)
        nlls = [part.nll(tried.at(part.logs)) for part in stressed]
        return held_out.nll(tried.at(held_out.logs)) + sum(nlls) / len(nlls)

    has_head = model.distances is not None and model.distances.head is not None
    first = _RATES if has_head else (0.0,)
    return replace(model, growth=min(itertools.product(first, _RATES), key=cost))
