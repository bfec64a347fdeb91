"""From a seed to what the policies need: flown data, networks, linear model, uncertainty."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from howsure.fit import Fit
from howsure.uncertain import Uncertain
from howsure_lab.experiments.quadrotor.flight import (
    World,
    circle,
    fly,
    lemniscate,
    random_smooth,
    together,
)
from howsure_lab.experiments.quadrotor.models import (
    NOISE_STD,
    LinearModel,
    Models,
    Siblings,
    SureNetwork,
    absolute_error,
    read,
)
from howsure_lab.experiments.quadrotor.physics import FULL_PHYSICS, model_error
from howsure_lab.experiments.runs import RunFolder
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, trained_once

SLOWEST, FASTEST = 1.0, 8.0  # m/s, as in the paper


@dataclass(frozen=True)
class Amount:
    """How much is flown."""

    # Circles, and as many lemniscates; 6 in the paper. Their speeds are evenly spaced from 1 to
    # 8 m/s, so 7 m/s, which tests, is not among them.
    maneuvers: int = 6
    random: int = 40  # random flights
    # Random flights that are held out, besides circles and lemniscates at the speeds between those
    # of training.
    held_out: int = 5
    seconds: float = 15.0  # of every flight
    every: int = 4  # only every so many steps are kept: neighbors are almost the same


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
        states = fly(World(together(plan)), amount.seconds).states[:: amount.every]
        x = np.stack([read(FULL_PHYSICS, state, generator) for state in states])
        y = np.stack([model_error(FULL_PHYSICS, state).T for state in states])
        flat = (torch.from_numpy(each.reshape(-1, each.shape[-1])).float() for each in (x, y))
        parts.append(Pairs(*flat))
    return Collected(*parts)


_RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35)


@dataclass(frozen=True)
class Preparation:
    """How models are made."""

    amount: Amount = field(default_factory=Amount)  # of training data
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(30, batch=256))
    siblings: int = 5  # networks that are trained; the first one is "the MLP"
    samples: int = 20  # of Monte Carlo, of the paper's method
    points: int = 16  # of the posterior's gradients; 64, the default, nearly double a step's time
    tuning: int = 2000  # held-out readings for rate, posterior, gate and laws
    known: int = 2000  # training readings that the posterior is given, without their labels


def prepared(how: Preparation, seed: int, folder: RunFolder) -> tuple[Models, dict[str, Any]]:
    """The models of a seed, and how good they are on held-out flights."""
    raw = collect(how.amount, seed)
    scale = raw.train.y.square().mean(0).sqrt()
    train, held_out = (Pairs(part.x, part.y / scale) for part in raw)
    siblings = made(lambda: Siblings(how.siblings, train), seed)
    assert isinstance(siblings, Siblings)
    trained_once(folder, f"seed{seed}-networks", siblings, train, absolute_error, how.recipe, seed)
    networks = siblings.apart()
    tuning = held_out.every(how.tuning)
    noise_var = torch.from_numpy(NOISE_STD).float().square()
    # The paper's method; all samples run at once, for speed.
    sampled = Uncertain(
        networks[0], noise_var, "sampled_adf", samples=how.samples, seed=seed, chunk=how.samples
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = tuning.every(600).batches(200)
        found = sampled.fit(batches, model="dropout", rates=_RATES, show_progress=False)
    assert isinstance(found, Fit)
    posterior = Uncertain(networks[0], noise_var, samples=how.points, seed=seed)
    posterior.fit(tuning.batches(200), train_inputs=train.every(how.known).x, show_progress=False)
    ensemble = Uncertain(nn.ModuleList(networks).eval(), method="ensemble")
    models = Models(
        networks[0],
        SureNetwork.fit(sampled, tuning, networks[0]),
        SureNetwork.fit(posterior, tuning),
        SureNetwork.fit(ensemble, tuning),
        LinearModel.fit(train, held_out),
        scale,
    )
    notes = sorted({str(warning.message) for warning in caught})
    return models, {"rate": found.rate, "notes": notes, **_held_out(models, held_out)}


@torch.inference_mode()
def _held_out(models: Models, held_out: Pairs) -> dict[str, object]:
    """Root mean squared errors on held-out flights in the errors' units, and what was fitted."""
    found = {
        "nominal": torch.zeros_like(held_out.y),
        "linear": models.linear(held_out.x),
        "mlp": models.network(held_out.x),
    }
    rmse = {
        name: ((mean - held_out.y) * models.scale).square().mean(0).sqrt().tolist()
        for name, mean in found.items()
    }
    fitted = ("dropout", "posterior", "ensemble", "linear")
    return {
        "held_out_rmse": {name: [round(v, 5) for v in values] for name, values in rmse.items()},
        "powers": {name: getattr(models, name).law.power.tolist() for name in fitted},
    }
