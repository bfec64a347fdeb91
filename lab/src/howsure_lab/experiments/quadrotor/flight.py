"""Many vehicles in closed loop: reference, correction, controller, physics, 200 times a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from howsure_lab.experiments.quadrotor.controller import (
    Gains,
    Target,
    nose_of,
    planned_rate_change,
    rotor_command,
    start,
)
from howsure_lab.experiments.quadrotor.integrator import step
from howsure_lab.experiments.quadrotor.rigid_body import joined, parts
from howsure_lab.experiments.quadrotor.trajectories import Reference, Trajectories
from howsure_lab.experiments.quadrotor.vehicle import FULL_PHYSICS, Array, Vehicle

DT = 1 / 200
# (time, state (17, n), wind (3, n)) -> correction (6, n)
Corrector = Callable[[float, Array, Array], Array]


@dataclass(frozen=True, eq=False)
class World:
    """What a flight happens in.

    Attributes:
        trajectories: What each vehicle should fly.
        vehicle: The physics.
        gains: The controller's.
        wind: Its velocity as the position of a trajectory; `None` for calm air.
    """

    trajectories: Trajectories
    vehicle: Vehicle = FULL_PHYSICS
    gains: Gains = field(default_factory=Gains)
    wind: Trajectories | None = None


@dataclass(frozen=True, eq=False)
class Flight:
    """What was flown, at every step.

    Attributes:
        states: (steps, 17, n).
        references: (steps, 3, n), wanted positions.
        winds: (steps, 3, n).
    """

    states: Array
    references: Array
    winds: Array

    def distance(self) -> Array:  # (steps, n)
        """How far each vehicle is from where it should be, m."""
        return np.sqrt(((self.states[:, :3] - self.references) ** 2).sum(1))

    def rmse(self, after: float) -> Array:  # (n,)
        """Root mean squared distance from `after` seconds on; infinite for a crash."""
        late = self.distance()[round(after / DT) :]
        with np.errstate(over="ignore"):
            found = np.sqrt((late**2).mean(0))
        return np.where(np.isfinite(found), found, np.inf)


def fly(world: World, seconds: float, correct: Corrector | None = None) -> Flight:
    """Flies all vehicles from a start on their references."""
    vehicle, times = (
        world.vehicle,
        np.asarray(DT * np.arange(round(seconds / DT)), dtype=np.float64),
    )
    plan = world.trajectories.at(times)
    nose = nose_of(world.trajectories.headings)
    changes = planned_rate_change(plan, nose, DT)
    winds = np.zeros_like(plan.position) if world.wind is None else world.wind.at(times).position
    state = joined(start(vehicle, Reference(*(part[0] for part in plan)), nose))
    states, nothing = np.empty((len(times), *state.shape)), np.zeros((6, state.shape[1]))
    # A vehicle that is out of control overflows, and only it.
    with np.errstate(all="ignore"):
        for i, wind in enumerate(winds):
            states[i] = state
            target = Target(Reference(*(part[i] for part in plan)), changes[i], nose)
            found = nothing if correct is None else correct(times[i], state, wind)
            command = rotor_command(vehicle, world.gains, parts(state), target, found)
            state = step(vehicle, state, command, DT, wind)
    return Flight(states, plan.position, winds)
