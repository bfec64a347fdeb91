"""The conditions under which every policy flies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from howsure_lab.experiments.quadrotor.readings import COUNT, VELOCITY
from howsure_lab.experiments.quadrotor.trajectories import (
    Trajectories,
    circle,
    lemniscate,
    together,
)
from howsure_lab.experiments.quadrotor.vehicle import Array

MANEUVERS: dict[str, Callable[[float, float], Trajectories]] = {
    "circle": circle,
    "lemniscate": lemniscate,
}


@dataclass(frozen=True)
class Regime:
    """A condition.

    Attributes:
        speed: Largest speed, m/s.
        radius: Of circle and lemniscate, m.
        heading: Where the nose points, rad; in training 0.
        wind: Standard deviation of the gusts' velocity along each level axis, m/s.
        fault: What is added to the forward velocity that the network reads, m/s.
        shared: Whether the linear model reads the same fault.
    """

    speed: float = 7.0
    radius: float = 4.0
    heading: float = 0.0
    wind: float = 0.0
    fault: float = 0.0
    shared: bool = False


REGIMES = {
    "normal": Regime(),
    # Three eighths faster than the fastest training flight. The radius keeps accelerations in the
    # range of training; at 12 m/s not even the true error keeps the rotors out of saturation.
    "fast": Regime(speed=11.0, radius=8.0),
    # The physics does not know the heading, but a network that has seen only one may think so.
    "heading": Regime(heading=np.pi / 2),
    "gusts": Regime(wind=3.0),
    "input_fault": Regime(fault=20.0),
    "shared_fault": Regime(fault=20.0, shared=True),
}
_FAULT_PERIOD, _FAULT_LENGTH = 3.0, 1.0  # s


@dataclass(frozen=True)
class Case:
    """A maneuver in a regime: one vehicle for each policy."""

    regime: str
    maneuver: str

    @property
    def name(self) -> str:
        """Such as "normal circle"."""
        return f"{self.regime} {self.maneuver}"


CASES = tuple(Case(regime, maneuver) for regime in REGIMES for maneuver in MANEUVERS)


def trajectories(cases: Sequence[Case]) -> Trajectories:
    """What the vehicles of these cases should fly."""
    flown = [(REGIMES[case.regime], MANEUVERS[case.maneuver]) for case in cases]
    return together([move(r.speed, r.radius).facing(r.heading) for r, move in flown])


def gusts(cases: Sequence[Case], generator: np.random.Generator, *, terms: int = 6) -> Trajectories:
    """The wind of these cases: a sum of random waves with periods of 2 to 12 s; level."""
    n = len(cases)
    rates = generator.uniform(0.5, 3.0, (terms, n))
    cosines, sines = generator.normal(size=(2, 3, terms, n))
    strength = np.array([REGIMES[case.regime].wind for case in cases])
    level = np.array([1.0, 1.0, 0.0])[:, None, None] * strength / np.sqrt(terms)
    return Trajectories(level * cosines, level * sines, rates, np.zeros(n))


def faults(cases: Sequence[Case], time: float, *, shared: bool) -> Array:  # (n, 14)
    """What is added to the readings now: 1 s in every 3; the first 2 s are free of it.

    Args:
        cases: One for each vehicle.
        time: s.
        shared: The linear model's readings instead of the network's.
    """
    added = np.zeros((len(cases), COUNT))
    if time % _FAULT_PERIOD < _FAULT_PERIOD - _FAULT_LENGTH:
        return added
    for row, case in zip(added, cases, strict=True):
        regime = REGIMES[case.regime]
        row[VELOCITY.start] = regime.fault if regime.shared or not shared else 0.0
    return added
