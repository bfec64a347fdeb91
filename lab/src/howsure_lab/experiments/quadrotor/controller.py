"""Geometric tracking control on SE(3) (Lee, Leok & McClamroch 2010) with feed-forward rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from howsure_lab.experiments.quadrotor.rigid_body import State
from howsure_lab.experiments.quadrotor.rotation import cross, matrix, quaternion, rotated, unrotated
from howsure_lab.experiments.quadrotor.trajectories import Reference
from howsure_lab.experiments.quadrotor.vehicle import GRAVITY, Array, Vehicle


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
