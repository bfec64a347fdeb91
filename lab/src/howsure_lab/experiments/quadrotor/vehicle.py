"""The quadrotor's numbers: mass, geometry, rotors, and how the air acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRAVITY = 9.81


@dataclass(frozen=True)
class Aerodynamics:
    """Coefficients of the air's forces; 0 leaves an effect out.

    Attributes:
        rotor_drag: Force of a rotor against the air in its plane, N / (m/s) / (rad/s).
        inflow: Loss of thrust of a rotor that moves along its axis, N / (m/s) / (rad/s).
        translational_lift: Extra thrust of a rotor that moves in its plane, N / (m/s)**2.
        body_drag: Quadratic drag of the body along its axes, N / (m/s)**2.
        center_of_pressure: Where the body's drag acts, in the body's frame, m.
    """

    rotor_drag: float = 0.0
    inflow: float = 0.0
    translational_lift: float = 0.0
    body_drag: tuple[float, float, float] = (0.0, 0.0, 0.0)
    center_of_pressure: tuple[float, float, float] = (0.0, 0.0, 0.0)


ROTOR_DRAG = Aerodynamics(rotor_drag=1.19e-4)
FULL = Aerodynamics(1.19e-4, 2.32e-4, 3.39e-3, (5e-3, 5e-3, 1e-2), (0.0, 0.0, 0.05))


@dataclass(frozen=True)
class Vehicle:
    """A small quadrotor of half a kilogram, rotors in an X; SI units, body frame x front, z up.

    Attributes:
        mass: kg.
        inertia: Moments of inertia about the body's axes, kg m**2.
        arm: From the center to a rotor, m.
        thrust_factor: Thrust of a rotor per squared speed, N / (rad/s)**2.
        yaw_factor: Its torque about its axis per squared speed, N m / (rad/s)**2.
        fastest: Largest speed of a rotor, rad/s.
        motor_lag: Time constant of the rotors' speed, s; 0 for none.
        air: How the air acts.
    """

    mass: float = 0.5
    inertia: tuple[float, float, float] = (3.65e-3, 3.68e-3, 7.03e-3)
    arm: float = 0.17
    thrust_factor: float = 5.57e-6
    yaw_factor: float = 1.36e-7
    fastest: float = 1500.0
    motor_lag: float = 0.0
    air: Aerodynamics = field(default_factory=Aerodynamics)

    def __post_init__(self) -> None:
        positive = (self.mass, *self.inertia, self.arm, self.thrust_factor, self.fastest)
        if min(positive) <= 0 or self.motor_lag < 0:
            raise ValueError(
                "Mass, inertia, arm, thrust factor and fastest rotor speed must be positive and "
                f"the motor lag 0 or more; found {self}."
            )

    @cached_property
    def rotors(self) -> Array:  # (3, 4)
        """Where the rotors are, front left first, then counter-clockwise seen from above."""
        angles = np.pi / 4 + np.pi / 2 * np.arange(4)
        return self.arm * np.stack([np.cos(angles), np.sin(angles), np.zeros(4)])

    @cached_property
    def spins(self) -> Array:  # (4,)
        """The sign of each rotor's torque about z."""
        return np.array([1.0, -1.0, 1.0, -1.0])

    @cached_property
    def rotor_motion(self) -> Array:  # (12, 3)
        """Maps the body's rates to the velocities of the rotors, w x r; rows are (axis, rotor)."""
        x, y, _ = self.rotors  # the rotors are level with the center of mass
        nothing = np.zeros(4)
        about = [[nothing, nothing, y], [nothing, nothing, -x], [-y, x, nothing]]
        return np.array(about).transpose(1, 2, 0).reshape(12, 3)

    @cached_property
    def inertias(self) -> Array:  # (3, 1)
        """The inertia as a column."""
        return np.array(self.inertia)[:, None]

    @cached_property
    def allocation(self) -> Array:  # (4, 4)
        """Maps the four thrusts to (collective thrust, moment)."""
        x, y, _ = self.rotors
        yaw = self.spins * self.yaw_factor / self.thrust_factor
        return np.stack([np.ones(4), y, -x, yaw])

    @cached_property
    def inverse_allocation(self) -> Array:  # (4, 4)
        """Maps (collective thrust, moment) to the four thrusts."""
        return np.asarray(np.linalg.inv(self.allocation), dtype=np.float64)

    @property
    def hover_speed(self) -> float:
        """The rotors' speed that carries the weight, rad/s."""
        return float(np.sqrt(self.mass * GRAVITY / 4 / self.thrust_factor))


NOMINAL = Vehicle()
SIMPLE_PHYSICS = replace(NOMINAL, air=ROTOR_DRAG)
FULL_PHYSICS = replace(NOMINAL, air=FULL, motor_lag=0.02)
