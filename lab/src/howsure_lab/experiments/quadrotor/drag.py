"""What the air does: thrust, rotor drag, inflow, translational lift, drag of the body.

The model of a rotor is the usual first-order one (Faessler et al. 2018; Svacha et al. 2017): with
the air's velocity u = (ux, uy, uz) relative to the rotor and its speed s,

    thrust = k s**2 + translational_lift (ux**2 + uy**2) - inflow s uz
    force in the plane = -rotor_drag s (ux, uy)
"""

from __future__ import annotations

import numpy as np

from howsure_lab.experiments.quadrotor.rotation import cross
from howsure_lab.experiments.quadrotor.vehicle import Array, Vehicle


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
    moment[2] += (vehicle.spins * vehicle.yaw_factor) @ (speeds * speeds)
    total = force.sum(1)
    if any(vehicle.air.body_drag):
        drag = body_drag(vehicle, air_velocity)
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


def body_drag(vehicle: Vehicle, air_velocity: Array) -> Array:  # (3, n)
    """-c |u| u, with one c per axis."""
    coefficients = np.array(vehicle.air.body_drag)[:, None]
    speed = np.sqrt((air_velocity * air_velocity).sum(0))
    return -coefficients * speed * air_velocity
