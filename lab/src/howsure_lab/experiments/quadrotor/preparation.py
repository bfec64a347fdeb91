"""From a seed to what the policies need: flown data, networks, linear model, uncertainty."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from howsure.fit import Fit
from howsure_lab.experiments.quadrotor.flight import (
    Trajectories,
    World,
    circle,
    fly,
    lemniscate,
    random_smooth,
    together,
)
from howsure_lab.experiments.quadrotor.models import (
    LinearModel,
    Models,
    Siblings,
    SureNetwork,
    absolute_error,
    as_ensemble,
    read,
    with_dropout,
    with_posterior,
)
from howsure_lab.experiments.quadrotor.physics import FULL_PHYSICS, model_error
from howsure_lab.experiments.runs import RunFolder
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, train_plain

SLOWEST, FASTEST = 1.0, 8.0  # m/s, as in the paper


@dataclass(frozen=True)
class Amount:
    """How much is flown.

    Attributes:
        maneuvers: Circles, and as many lemniscates; 6 in the paper. Their speeds are evenly spaced
            from 1 to 8 m/s, so 7 m/s, which tests, is not among them.
        random: Random flights.
        held_out: Random flights that are held out, besides circles and lemniscates at the speeds
            between those of training.
        seconds: Of every flight.
        every: Only every so many steps are kept: neighbors are almost the same.
    """

    maneuvers: int = 6
    random: int = 40
    held_out: int = 5
    seconds: float = 15.0
    every: int = 4


class Collected(NamedTuple):
    """Readings (n, 14) and model errors (n, 6); whole flights are held out."""

    train: Pairs
    validation: Pairs


def collect(amount: Amount, seed: int) -> Collected:
    """Flies all and keeps readings with labels, from a seed."""
    generator = np.random.default_rng(seed)
    regular = np.linspace(SLOWEST, FASTEST, amount.maneuvers)
    between = (regular[1:] + regular[:-1]) / 2
    parts = []
    for count, speeds in ((amount.random, regular), (amount.held_out, between)):
        fastest = generator.uniform(SLOWEST, FASTEST, count)
        plan = [random_smooth(fastest, generator)]
        plan += [maneuver(speed) for maneuver in (circle, lemniscate) for speed in speeds.tolist()]
        parts.append(_pairs(*_flown(together(plan), amount, generator)))
    return Collected(*parts)


def _flown(
    plan: Trajectories, amount: Amount, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:  # (steps, n, 14), (steps, n, 6)
    flown = fly(World(plan), amount.seconds).states[:: amount.every]
    x = np.stack([read(FULL_PHYSICS, state, generator) for state in flown])
    y = np.stack([model_error(FULL_PHYSICS, state).T for state in flown])
    return x, y


def _pairs(x: np.ndarray, y: np.ndarray) -> Pairs:
    flat = [torch.from_numpy(each.reshape(-1, each.shape[-1])).float() for each in (x, y)]
    return Pairs(*flat)


_RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35)


@dataclass(frozen=True)
class Preparation:
    """How models are made.

    Attributes:
        amount: Of training data.
        recipe: Training.
        siblings: Networks that are trained; the first one is "the MLP".
        samples: Monte-Carlo samples of the paper's method.
        points: Noisy points of the posterior's gradients; the default's 64 take a step of the loop
            nearly twice as long.
        tuning: Held-out readings for rate, posterior, gate and laws.
        known: Training readings that the posterior is given, without their labels.
    """

    amount: Amount = field(default_factory=Amount)
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(30, batch=256))
    siblings: int = 5
    samples: int = 20
    points: int = 16
    tuning: int = 2000
    known: int = 2000


def prepared(how: Preparation, seed: int, folder: RunFolder) -> tuple[Models, dict[str, Any]]:
    """The models of a seed, and how good they are on held-out flights."""
    raw = collect(how.amount, seed)
    scale = raw.train.y.square().mean(0).sqrt()
    train, held_out = (Pairs(part.x, part.y / scale) for part in raw)
    siblings = made(lambda: Siblings(how.siblings, train), seed)

    def fit(model: nn.Module) -> None:
        train_plain(model, train, absolute_error, how.recipe, seed)

    folder.trained(f"seed{seed}-networks", siblings, fit)
    assert isinstance(siblings, Siblings)
    networks = siblings.apart()
    tuning = held_out.every(how.tuning)
    sampled = with_dropout(networks[0], samples=how.samples, seed=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = tuning.every(600).batches(200)
        found = sampled.fit(batches, model="dropout", rates=_RATES, show_progress=False)
    assert isinstance(found, Fit)
    posterior = with_posterior(networks[0], points=how.points, seed=seed)
    posterior.fit(tuning.batches(200), train_inputs=train.every(how.known).x, show_progress=False)
    notes = sorted({str(warning.message) for warning in caught})
    models = Models(
        networks[0],
        SureNetwork.fit(sampled, tuning, networks[0]),
        SureNetwork.fit(posterior, tuning),
        SureNetwork.fit(as_ensemble(networks), tuning),
        LinearModel.fit(train, held_out),
        scale,
    )
    return models, {"rate": found.rate, "notes": notes, **_held_out(models, held_out)}


@torch.inference_mode()
def _held_out(models: Models, held_out: Pairs) -> dict[str, object]:
    """Root mean squared errors on held-out flights in the errors' units, and what was fitted."""

    def size(found: torch.Tensor) -> list[float]:
        errors = (found - held_out.y) * models.scale
        return [round(value, 5) for value in errors.square().mean(0).sqrt().tolist()]

    return {
        "held_out_rmse": {
            "nominal": size(torch.zeros_like(held_out.y)),
            "linear": size(models.linear(held_out.x)),
            "mlp": size(models.network(held_out.x)),
        },
        "powers": {
            "dropout": models.dropout.law.power.tolist(),
            "posterior": models.posterior.law.power.tolist(),
            "ensemble": models.ensemble.law.power.tolist(),
            "linear": models.linear.law.power.tolist(),
        },
    }
