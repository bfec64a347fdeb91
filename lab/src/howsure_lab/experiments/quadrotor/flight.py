"""Flights in closed loop: reference trajectories, the controller, and many vehicles at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from howsure_lab.experiments.quadrotor.physics import (
    FULL_PHYSICS,
    GRAVITY,
    Array,
    State,
    Vehicle,
    cross,
    joined,
    matrix,
    parts,
    quaternion,
    rotated,
    step,
    unrotated,
)

RADIUS = 4.0  # of circle and lemniscate, as in the paper


class Reference(NamedTuple):
    """Where the vehicle should be, with derivatives: (3, n) each, or (steps, 3, n)."""

    position: Array
    velocity: Array
    acceleration: Array
    jerk: Array


@dataclass(frozen=True, eq=False)
class Trajectories:
    """p(t) = sum_k cosines_k cos(rates_k t) + sines_k sin(rates_k t), of n vehicles."""

    cosines: Array  # (3, k, n), m
    sines: Array  # (3, k, n), m
    rates: Array  # (k, n), rad/s
    headings: Array  # (n,), where the vehicle's nose points, rad; 0 is along x

    @property
    def count(self) -> int:
        """The number of vehicles."""
        return self.rates.shape[1]

    def at(self, times: Array) -> Reference:  # (steps,)
        """Position, velocity, acceleration and jerk at all times, each (steps, 3, n)."""
        angles = times[:, None, None] * self.rates
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        along, across = self.cosines * c + self.sines * s, self.sines * c - self.cosines * s
        rates = self.rates
        return Reference(
            along.sum(2),
            (across * rates).sum(2),
            -(along * rates**2).sum(2),
            -(across * rates**3).sum(2),
        )

    def chosen(self, indices: Sequence[int]) -> Trajectories:
        """Some of the trajectories, possibly several times."""
        index = np.asarray(indices, dtype=int)
        return Trajectories(
            *(each[..., index] for each in (self.cosines, self.sines, self.rates, self.headings))
        )

    def facing(self, heading: float) -> Trajectories:
        """The same flights with another heading."""
        return replace(self, headings=np.full(self.count, heading))


def circle(speed: float, radius: float = RADIUS) -> Trajectories:
    """A level circle at constant speed."""
    cosines, sines = np.zeros((3, 1, 1)), np.zeros((3, 1, 1))
    cosines[0, 0], sines[1, 0] = radius, radius
    return Trajectories(cosines, sines, np.full((1, 1), speed / radius), np.zeros(1))


def lemniscate(speed: float, radius: float = RADIUS) -> Trajectories:
    """A level figure of eight, twice the radius long; `speed` is the largest one, at its center.

    x = r sin(a t), y = r/2 sin(2 a t): the lemniscate of Gerono. At the center |v| = sqrt(2) r a.
    """
    sines = np.zeros((3, 2, 1))
    sines[0, 0], sines[1, 1] = radius, radius / 2
    rate = speed / (radius * np.sqrt(2))
    return Trajectories(np.zeros((3, 2, 1)), sines, np.array([[rate], [2 * rate]]), np.zeros(1))


def random_smooth(speeds: Array, generator: np.random.Generator, *, terms: int = 4) -> Trajectories:
    """Random smooth flights in space; each one's largest speed within a minute is given.

    The vertical part is half as large as the level ones.
    """
    n = len(speeds)
    rates = generator.uniform(0.4, 1.6, (terms, n))
    cosines, sines = generator.normal(size=(2, 3, terms, n)) / rates
    cosines[2] *= 0.5
    sines[2] *= 0.5
    raw = Trajectories(cosines, sines, rates, np.zeros(n))
    fastest = np.linalg.norm(raw.at(np.arange(0, 60, 0.05)).velocity, axis=1).max(0)
    scale = speeds / fastest
    return Trajectories(cosines * scale, sines * scale, rates, np.zeros(n))


def together(several: Sequence[Trajectories]) -> Trajectories:
    """All vehicles of several trajectories; missing terms are 0."""
    terms = max(len(each.rates) for each in several)

    def joined(name: str) -> Array:
        """The field of all, filled with 0 along the terms, the last axis but one."""
        arrays = [getattr(each, name) for each in several]
        width = [(0, 0)] * (arrays[0].ndim - 2)
        filled = [np.pad(a, [*width, (0, terms - a.shape[-2]), (0, 0)]) for a in arrays]
        return np.concatenate(filled, -1)

    headings = np.concatenate([each.headings for each in several])
    return Trajectories(joined("cosines"), joined("sines"), joined("rates"), headings)


@dataclass(frozen=True)
class Gains:
    """Feedback gains, 1/s**2 and 1/s: every loop is a damped oscillator."""

    position: float = 8.0
    velocity: float = 4.5
    attitude: float = 180.0
    rates: float = 22.0


class Attitude(NamedTuple):
    """A wanted attitude."""

    rotation: Array  # (3, 3, n)
    rates: Array  # (3, n), in its own frame


class Target(NamedTuple):
    """What the controller follows at one time, with the change of the wanted rates."""

    reference: Reference  # (3, n) each
    rate_change: Array  # (3, n)
    nose: Array  # (3, n), level, of length 1


def rotor_command(
    vehicle: Vehicle,
    gains: Gains,
    state: State,
    target: Target,
    correction: Array,  # (6, n), model error in the body's frame
) -> Array:  # (4, n)
    """Wanted speeds of the rotors.

    The correction is what the model misses, so it is taken off: the wanted acceleration gets
    - R e_lin and the moment - J e_ang (Faessler et al. 2018; the paper, Sec. IV-A).
    """
    rotation, reference = matrix(state.attitude), target.reference
    wanted = reference.acceleration - rotated(rotation, correction[:3])
    wanted += gains.position * (reference.position - state.position)
    wanted += gains.velocity * (reference.velocity - state.velocity)
    wanted[2] += GRAVITY
    thrust = vehicle.mass * (wanted * rotation[:, 2]).sum(0)
    attitude = toward(wanted, reference.jerk, target.nose)
    change = _rate_change(gains, rotation, state.rates, attitude, target.rate_change)
    change -= correction[3:]
    moment = vehicle.inertias * change + cross(state.rates, vehicle.inertias * state.rates)
    return speeds_for(vehicle, thrust, moment)


def nose_of(headings: Array) -> Array:  # (n,) -> (3, n)
    """The level direction in which the nose points."""
    return np.stack([np.cos(headings), np.sin(headings), np.zeros_like(headings)])


def toward(acceleration: Array, jerk: Array, nose: Array) -> Attitude:  # (3, n) each
    """The attitude with z along the wanted acceleration and x toward `nose`, and its rates.

    z' = (jerk - (z . jerk) z) / |acceleration| gives the rates about x and y; the one about z
    follows from the heading, which stays.
    """
    size = np.sqrt((acceleration * acceleration).sum(0))
    z = acceleration / size
    y = cross(z, nose)
    y /= np.sqrt((y * y).sum(0))
    x = cross(y, z)
    turn = jerk / size  # its part along z turns nothing
    about_x, about_y = -(turn * y).sum(0), (turn * x).sum(0)
    about_z = about_x * (z * nose).sum(0) / (x * nose).sum(0)
    return Attitude(np.stack([x, y, z], 1), np.stack([about_x, about_y, about_z]))


def planned_rate_change(references: Reference, nose: Array, dt: float) -> Array:  # (steps, 3, n)
    """How the rates of a perfect flight along the references change, by central differences."""
    up = np.array([[0.0], [0.0], [GRAVITY]])
    rates = [
        toward(acceleration + up, jerk, nose).rates
        for acceleration, jerk in zip(references.acceleration, references.jerk, strict=True)
    ]
    return np.gradient(np.stack(rates), dt, axis=0) if len(rates) > 1 else np.zeros_like(rates)


def _rate_change(
    gains: Gains, rotation: Array, rates: Array, wanted: Attitude, change: Array
) -> Array:  # (3, n)
    """Feedback of attitude 1/2 vee(Rd^T R - R^T Rd) and rates, and the wanted motion itself."""
    between = (wanted.rotation[:, :, None] * rotation[:, None]).sum(0)  # Rd^T R
    twice = between - between.transpose(1, 0, 2)
    error = 0.5 * np.stack([twice[2, 1], twice[0, 2], twice[1, 0]])
    wanted_rates = unrotated(between, wanted.rates)  # R^T Rd w
    feedback = -gains.attitude * error - gains.rates * (rates - wanted_rates)
    return feedback + unrotated(between, change) - cross(rates, wanted_rates)


def speeds_for(vehicle: Vehicle, thrust: Array, moment: Array) -> Array:  # (n,), (3, n) -> (4, n)
    """The rotors' speeds for a collective thrust and a moment, within what they can do."""
    thrusts = vehicle.inverse_allocation @ np.concatenate([thrust[None], moment])
    largest = vehicle.thrust_factor * vehicle.fastest**2
    return np.sqrt(np.minimum(np.maximum(thrusts, 0.0), largest) / vehicle.thrust_factor)


def start(vehicle: Vehicle, reference: Reference, nose: Array) -> State:
    """A vehicle that is on its reference already, with the rotors that this needs."""
    wanted = reference.acceleration + np.array([[0.0], [0.0], [GRAVITY]])
    attitude = toward(wanted, reference.jerk, nose)
    thrust = vehicle.mass * np.linalg.norm(wanted, axis=0)
    speeds = speeds_for(vehicle, thrust, np.zeros_like(wanted))
    turned = quaternion(attitude.rotation)
    return State(reference.position, reference.velocity, turned, attitude.rates, speeds)


DT = 1 / 200
# (time, state (17, n), wind (3, n)) -> correction (6, n)
Corrector = Callable[[float, Array, Array], Array]


@dataclass(frozen=True, eq=False)
class World:
    """What a flight happens in."""

    trajectories: Trajectories  # what each vehicle should fly
    vehicle: Vehicle = FULL_PHYSICS
    gains: Gains = field(default_factory=Gains)
    wind: Trajectories | None = None  # its velocity is their position; `None` for calm air


@dataclass(frozen=True, eq=False)
class Flight:
    """What was flown, at every step."""

    states: Array  # (steps, 17, n)
    references: Array  # (steps, 3, n), wanted positions

    def rmse(self, after: float) -> Array:  # (n,)
        """Root mean squared distance from `after` seconds on; infinite for a crash."""
        distance = np.sqrt(((self.states[:, :3] - self.references) ** 2).sum(1))
        with np.errstate(over="ignore"):
            found = np.sqrt((distance[round(after / DT) :] ** 2).mean(0))
        return np.where(np.isfinite(found), found, np.inf)


def fly(world: World, seconds: float, correct: Corrector | None = None) -> Flight:
    """Flies all vehicles from a start on their references."""
    vehicle = world.vehicle
    times = DT * np.arange(round(seconds / DT), dtype=np.float64)
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
    return Flight(states, plan.position)
