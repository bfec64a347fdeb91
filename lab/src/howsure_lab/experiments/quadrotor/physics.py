"""The quadrotor: its numbers, the air's forces, the equations of motion, and a step in time.

The model of a rotor is the usual first-order one (Faessler et al. 2018; Svacha et al. 2017): with
the air's velocity u = (ux, uy, uz) relative to the rotor and its speed s,

    thrust = k s**2 + translational_lift (ux**2 + uy**2) - inflow s uz
    force in the plane = -rotor_drag s (ux, uy)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRAVITY = 9.81
_SPINS = np.array([1.0, -1.0, 1.0, -1.0])  # the sign of each rotor's torque about z


@dataclass(frozen=True)
class Aerodynamics:
    """Coefficients of the air's forces; 0 leaves an effect out."""

    rotor_drag: float = 0.0  # of a rotor against the air in its plane, N / (m/s) / (rad/s)
    inflow: float = 0.0  # thrust lost by motion along the rotor's axis, N / (m/s) / (rad/s)
    translational_lift: float = 0.0  # thrust gained by motion in its plane, N / (m/s)**2
    body_drag: tuple[float, float, float] = (0.0, 0.0, 0.0)  # along its axes, N / (m/s)**2
    center_of_pressure: tuple[float, float, float] = (0.0, 0.0, 0.0)  # where it acts, body, m


ROTOR_DRAG = Aerodynamics(rotor_drag=1.19e-4)
FULL = Aerodynamics(1.19e-4, 2.32e-4, 3.39e-3, (5e-3, 5e-3, 1e-2), (0.0, 0.0, 0.05))


@dataclass(frozen=True)
class Vehicle:
    """A small quadrotor of half a kilogram, rotors in an X; SI units, body frame x front, z up."""

    mass: float = 0.5  # kg
    inertia: tuple[float, float, float] = (3.65e-3, 3.68e-3, 7.03e-3)  # about its axes, kg m**2
    arm: float = 0.17  # from the center to a rotor, m
    thrust_factor: float = 5.57e-6  # thrust of a rotor per squared speed, N / (rad/s)**2
    yaw_factor: float = 1.36e-7  # its torque about its axis per squared speed, N m / (rad/s)**2
    fastest: float = 1500.0  # largest speed of a rotor, rad/s
    motor_lag: float = 0.0  # time constant of the rotors' speed, s; 0 for none
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
    def rotor_motion(self) -> Array:  # (12, 3)
        """Maps the body's rates to the velocities of the rotors, w x r; rows are (axis, rotor)."""
        return np.cross(np.eye(3)[:, None], self.rotors.T).transpose(2, 1, 0).reshape(12, 3)

    @cached_property
    def inertias(self) -> Array:  # (3, 1)
        """The inertia as a column."""
        return np.array(self.inertia)[:, None]

    @cached_property
    def allocation(self) -> Array:  # (4, 4)
        """Maps the four thrusts to (collective thrust, moment)."""
        x, y, _ = self.rotors
        return np.stack([np.ones(4), y, -x, _SPINS * self.yaw_factor / self.thrust_factor])

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


# A product of all pairs and one small matrix product are several times faster than a line of numpy
# for every term: a cross product, (3, 9), and the entries of a rotation matrix as sums of products
# of the quaternion's components, (9, 16).
_CROSS = np.zeros((3, 3, 3))
_MATRIX = np.zeros((3, 3, 4, 4))
for _i, _j, _k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    _CROSS[_i, _j, _k], _CROSS[_i, _k, _j] = 1, -1
    for _component in range(4):
        _MATRIX[_i, _i, _component, _component] = 1 if _component in (0, _i + 1) else -1
    _MATRIX[_i, _j, _i + 1, _j + 1] = _MATRIX[_j, _i, _i + 1, _j + 1] = 2
    _MATRIX[_i, _j, 0, _k + 1], _MATRIX[_j, _i, 0, _k + 1] = -2, 2
_CROSS, _MATRIX = _CROSS.reshape(3, 9), _MATRIX.reshape(9, 16)


def cross(a: Array, b: Array) -> Array:  # (3, n), (3, n) -> (3, n)
    """The cross product."""
    return _CROSS @ (a[:, None] * b).reshape(9, -1)


def matrix(q: Array) -> Array:  # (4, n) -> (3, 3, n)
    """The rotation from body to world of unit quaternions (w, x, y, z)."""
    return (_MATRIX @ (q[:, None] * q).reshape(16, -1)).reshape(3, 3, -1)


def rotated(rotation: Array, vector: Array) -> Array:  # (3, 3, n), (3, n) -> (3, n)
    """R v: body to world."""
    return (rotation * vector).sum(1)


def unrotated(rotation: Array, vector: Array) -> Array:  # (3, 3, n), (3, n) -> (3, n)
    """R^T v: world to body."""
    return (rotation * vector[:, None]).sum(0)


def quaternion_rate(q: Array, rates: Array) -> Array:  # (4, n), (3, n) -> (4, n)
    """q' = 1/2 q * (0, rates), for rates in the body's frame."""
    half = 0.5 * rates
    return np.concatenate([-(q[1:] * half).sum(0)[None], q[0] * half + cross(q[1:], half)])


def quaternion(rotation: Array) -> Array:  # (3, 3, n) -> (4, n)
    """The unit quaternion of a rotation, with w >= 0.

    Of the four components the largest is computed from the diagonal, which loses no digits
    (Shepperd 1978).
    """
    r = rotation
    xx, yy, zz = r[0, 0], r[1, 1], r[2, 2]
    trace = xx + yy + zz
    yz, zx, xy = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    sxy, szx, syz = r[1, 0] + r[0, 1], r[0, 2] + r[2, 0], r[2, 1] + r[1, 2]
    # Entry (i, j) is 4 q_i q_j.
    products = np.array(
        [
            [1 + trace, yz, zx, xy],
            [yz, 1 - trace + 2 * xx, sxy, szx],
            [zx, sxy, 1 - trace + 2 * yy, syz],
            [xy, szx, syz, 1 - trace + 2 * zz],
        ]
    )
    best = np.einsum("iin->in", products).argmax(0)
    chosen = products[best, :, np.arange(r.shape[2])].T
    return canonical(chosen / np.linalg.norm(chosen, axis=0))


def canonical(q: Array) -> Array:  # (4, n)
    """The same rotation with w >= 0: q and -q are one rotation, and a network should see one."""
    return np.where(q[0] < 0, -q, q)


def wrench(
    vehicle: Vehicle,
    air_velocity: Array,  # (3, n), of the body through the air, in the body's frame
    rates: Array,  # (3, n)
    speeds: Array,  # (4, n), of the rotors
) -> tuple[Array, Array]:  # (3, n), (3, n)
    """Force and moment on the body in its own frame, without gravity."""
    force = rotor_forces(vehicle, air_velocity, rates, speeds)
    # Moments are r x F, velocities w x r: by (w x r) . F = w . (r x F) the same map, transposed.
    moment = vehicle.rotor_motion.T @ force.reshape(12, -1)
    moment[2] += (_SPINS * vehicle.yaw_factor) @ (speeds * speeds)
    total = force.sum(1)
    if any(vehicle.air.body_drag):
        # -c |u| u, with one c per axis.
        speed = np.sqrt((air_velocity * air_velocity).sum(0))
        drag = -np.array(vehicle.air.body_drag)[:, None] * speed * air_velocity
        total += drag
        moment += cross(np.array(vehicle.air.center_of_pressure)[:, None], drag)
    return total, moment


def rotor_forces(
    vehicle: Vehicle, air_velocity: Array, rates: Array, speeds: Array
) -> Array:  # (3, 4, n)
    """The force of every rotor in the body's frame."""
    air = vehicle.air
    local = air_velocity[:, None] + (vehicle.rotor_motion @ rates).reshape(3, 4, -1)
    level = local[:2]
    force = np.empty_like(local)
    force[:2] = -air.rotor_drag * speeds * level
    force[2] = speeds * (vehicle.thrust_factor * speeds - air.inflow * local[2])
    force[2] += air.translational_lift * (level * level).sum(0)
    return force


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
    out[10:13] = (moment - cross(rates, vehicle.inertias * rates)) / vehicle.inertias
    out[13:17] = (command - speeds) / vehicle.motor_lag if vehicle.motor_lag else 0.0
    return out


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
