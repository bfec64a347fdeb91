"""What network and linear model read of the vehicle: 14 numbers with the noise of their sensors."""

from __future__ import annotations

import numpy as np

from howsure_lab.experiments.quadrotor.rigid_body import parts
from howsure_lab.experiments.quadrotor.rotation import canonical, matrix, unrotated
from howsure_lab.experiments.quadrotor.vehicle import Array, Vehicle

ATTITUDE, VELOCITY, RATES, THRUSTS = slice(0, 4), slice(4, 7), slice(7, 10), slice(10, 14)
COUNT = 14
# Standard deviations: of a quaternion's component, m/s, rad/s, N.
NOISE_STD = np.repeat([0.005, 0.05, 0.02, 0.02], [4, 3, 3, 4])


def read(vehicle: Vehicle, state: Array, generator: np.random.Generator) -> Array:  # (n, 14)
    """Attitude (with w >= 0), velocity in the body's frame, rates and thrusts, with noise."""
    exact = exact_reading(vehicle, state)
    return exact + NOISE_STD * generator.standard_normal(exact.shape)


def exact_reading(vehicle: Vehicle, state: Array) -> Array:  # (17, n) -> (n, 14)
    """What the sensors would read without noise."""
    now = parts(state)
    velocity = unrotated(matrix(now.attitude), now.velocity)
    thrusts = vehicle.thrust_factor * now.speeds**2
    return np.concatenate([canonical(now.attitude), velocity, now.rates, thrusts]).T
