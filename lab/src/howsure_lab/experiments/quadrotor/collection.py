"""Training data from flights without correction: readings, and what the nominal model missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.quadrotor.flight import World, fly
from howsure_lab.experiments.quadrotor.readings import read
from howsure_lab.experiments.quadrotor.rigid_body import model_error
from howsure_lab.experiments.quadrotor.trajectories import (
    Trajectories,
    circle,
    lemniscate,
    random_smooth,
    together,
)
from howsure_lab.experiments.quadrotor.vehicle import FULL_PHYSICS

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
