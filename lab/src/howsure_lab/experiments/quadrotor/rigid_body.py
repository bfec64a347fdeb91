"""The equations of motion, of many vehicles at once, and the state they act on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from howsure_lab.experiments.quadrotor.drag import wrench
from howsure_lab.experiments.quadrotor.rotation import (
    cross,
    matrix,
    quaternion_rate,
    rotated,
    unrotated,
)
from howsure_lab.experiments.quadrotor.vehicle import GRAVITY, Array, Vehicle

SIZE = 17


class State(NamedTuple):
    """Views into the rows of a state array, (17, n): components first, vehicles last."""

    position: Array  # (3, n), world
    velocity: Array  # (3, n), world
    attitude: Array  # (4, n), unit quaternion from body to world
    rates: Array  # (3, n), body
    speeds: Array  # (4, n), of the rotors


def parts(state: Array) -> State:  # (17, n)
    """The named parts of a state array."""
    return State(state[:3], state[3:6], state[6:10], state[10:13], state[13:17])


def joined(state: State) -> Array:  # (17, n)
    """The state array of named parts."""
    return np.concatenate(state)


def derivative(
    vehicle: Vehicle,
    state: Array,  # (17, n)
    command: Array,  # (4, n), wanted speeds of the rotors
    wind: Array | float = 0.0,  # (3, n), world
) -> Array:  # (17, n)
    """Newton and Euler: m v' = R F - m g, J w' = M - w x J w; the rotors follow with a lag."""
    _, velocity, attitude, rates, speeds = parts(state)
    rotation = matrix(attitude)
    force, moment = wrench(vehicle, unrotated(rotation, velocity - wind), rates, speeds)
    out = np.empty_like(state)
    out[:3] = velocity
    out[3:6] = rotated(rotation, force) / vehicle.mass
    out[5] -= GRAVITY
    out[6:10] = quaternion_rate(attitude, rates)
    out[10:13] = rate_change(vehicle, rates, moment)
    out[13:17] = (command - speeds) / vehicle.motor_lag if vehicle.motor_lag else 0.0
    return out


def rate_change(vehicle: Vehicle, rates: Array, moment: Array) -> Array:  # (3, n)
    """Euler's equations for a diagonal inertia."""
    return (moment - cross(rates, vehicle.inertias * rates)) / vehicle.inertias


def model_error(vehicle: Vehicle, state: Array, wind: Array | float = 0.0) -> Array:  # (6, n)
    """What the nominal model misses: linear and angular acceleration, in the body's frame.

    The nominal model knows gravity, the rotors' thrust `thrust_factor * speed**2` and their torque;
    these are the labels of the paper's network, from the actual speeds of the rotors.
    """
    _, velocity, attitude, rates, speeds = parts(state)
    air_velocity = unrotated(matrix(attitude), velocity - wind)
    force, moment = wrench(vehicle, air_velocity, rates, speeds)
    expected = vehicle.allocation @ (vehicle.thrust_factor * speeds * speeds)
    force[2] -= expected[0]
    return np.concatenate([force / vehicle.mass, (moment - expected[1:]) / vehicle.inertias])


def energy(vehicle: Vehicle, state: Array) -> Array:  # (n,)
    """Kinetic and potential energy, J; the rotors' own is left out."""
    position, velocity, _, rates, _ = parts(state)
    moving = 0.5 * vehicle.mass * (velocity**2).sum(0) + 0.5 * (vehicle.inertias * rates**2).sum(0)
    return moving + vehicle.mass * GRAVITY * position[2]


def angular_momentum(vehicle: Vehicle, state: Array) -> Array:  # (3, n)
    """R J w: in the world's frame, about the center of mass."""
    _, _, attitude, rates, _ = parts(state)
    return rotated(matrix(attitude), vehicle.inertias * rates)
