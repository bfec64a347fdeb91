"""One step in time by the classical Runge-Kutta method of order four."""

from __future__ import annotations

import numpy as np

from howsure_lab.experiments.quadrotor.rigid_body import derivative
from howsure_lab.experiments.quadrotor.vehicle import Array, Vehicle


def step(
    vehicle: Vehicle,
    state: Array,  # (17, n)
    command: Array,  # (4, n), wanted speeds of the rotors, held over the step
    dt: float,
    wind: Array | float = 0.0,  # (3, n), held over the step
) -> Array:  # (17, n)
    """The state after `dt`; quaternions have length 1 again."""
    if vehicle.motor_lag == 0:
        state = state.copy()
        state[13:17] = command
    k1 = derivative(vehicle, state, command, wind)
    k2 = derivative(vehicle, state + 0.5 * dt * k1, command, wind)
    k3 = derivative(vehicle, state + 0.5 * dt * k2, command, wind)
    k4 = derivative(vehicle, state + dt * k3, command, wind)
    out = state + dt / 6 * (k1 + 2 * (k2 + k3) + k4)
    out[6:10] /= np.sqrt((out[6:10] ** 2).sum(0))
    return out
