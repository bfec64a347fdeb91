"""The policy in closed loop with the laboratory's quadrotor, which it has never seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from howsure_lab.experiments.quadrotor.flight import lemniscate
from howsure_lab.experiments.quadrotor.physics import (
    FULL_PHYSICS,
    Array,
    State,
    Vehicle,
    joined,
    matrix,
    parts,
    step,
)
from howsure_lab.experiments.raptor.policy import SENSORS, Policy

DT = 1 / 100  # s, as the policy was trained
_SUBSTEPS = 2  # of the physics, for each step of the policy
# Standard deviations of good onboard sensors: m, entries of a matrix (half a degree), m/s, rad/s,
# and the command as the motor drivers report it, in steps of about 3 %.
NOISE_STD = {"position": 0.02, "attitude": 0.01, "velocity": 0.05, "rates": 0.02, "command": 0.01}


@dataclass(frozen=True)
class Plan:
    """What is flown: back to the origin from a tilted start, then a figure of eight."""

    seconds: float = 10.0  # of the flight
    hover: float = 2.0  # how long it stays at the origin first, s
    speed: float = 1.4  # the largest on the figure of eight, m/s
    radius: float = 1.0  # of the figure of eight, m
    thrust_to_weight: float = 3.0  # of the vehicle; the policy was trained for 1.5 to 5

    @property
    def vehicle(self) -> Vehicle:
        """The laboratory's quadrotor with weaker motors."""
        fastest = FULL_PHYSICS.hover_speed * self.thrust_to_weight**0.5
        return replace(FULL_PHYSICS, fastest=fastest)

    def reference(self, time: float) -> tuple[Array, Array]:
        """Wanted position and velocity, (3,) each."""
        if time < self.hover:
            return np.zeros(3), np.zeros(3)
        found = lemniscate(self.speed, self.radius).at(np.array([time - self.hover]))
        return found.position[0, :, 0], found.velocity[0, :, 0]


@dataclass(frozen=True, eq=False)
class Flight:
    """What was flown, at every step."""

    readings: Tensor  # (steps, 22), with the sensors' noise
    commands: Tensor  # (steps, 4), as the policy gave them
    distances: Array  # (steps,), from the reference, m


@torch.no_grad()
def fly(policy: Policy, plan: Plan, seed: int) -> Flight:
    """A flight with sensor noise in the loop."""
    vehicle, generator = plan.vehicle, np.random.default_rng(seed)
    std = np.repeat(list(NOISE_STD.values()), list(SENSORS.values()))
    # At rest, two thirds of a meter away and rolled by a third of a right angle.
    start = np.array([0.5, -0.3, 0.2]), np.array([np.cos(np.pi / 12), np.sin(np.pi / 12), 0, 0])
    rest, speeds = np.zeros(3), np.full(4, vehicle.hover_speed)
    state = joined(State(start[0], rest, start[1], rest, speeds))[:, None]
    command, memory = np.zeros(4), policy.start(1)
    readings, commands, distances = [], [], []
    for i in range(round(plan.seconds / DT)):
        exact = _reading(state, plan.reference(i * DT), command)
        reading = torch.from_numpy(exact + std * generator.standard_normal(len(std))).float()
        found, states = policy.after(reading[None, None], memory)
        memory, command = states[:, -1], found[0, 0].clamp(-1, 1).double().numpy()
        # The policy's motors go clockwise, the vehicle's the other way.
        speeds = ((command[::-1] + 1) / 2 * vehicle.fastest)[:, None]
        for _ in range(_SUBSTEPS):
            state = step(vehicle, state, speeds, DT / _SUBSTEPS)
        readings.append(reading)
        commands.append(found[0, 0])
        distances.append(np.linalg.norm(exact[:3]))
    return Flight(torch.stack(readings), torch.stack(commands), np.array(distances))


def _reading(state: Array, reference: tuple[Array, Array], command: Array) -> Array:  # (22,)
    """What exact sensors would tell the policy."""
    now, (position, velocity) = parts(state), reference
    attitude = matrix(now.attitude)[:, :, 0].flatten()
    moved = now.position[:, 0] - position, attitude, now.velocity[:, 0] - velocity
    return np.concatenate([*moved, now.rates[:, 0], command])


@torch.no_grad()
def histories(
    policy: Policy,
    readings: Tensor,  # (steps, n, 22)
    length: int,
    every: int,
) -> dict[str, Tensor]:  # (points, length, ...) for each sensor; memory: (points, width)
    """The policy's inputs at every so many steps: the last `length` readings, its memory before.

    Points are ordered by time, then by vehicle.
    """
    _, states = policy.after(readings.transpose(0, 1), policy.start(readings.shape[1]))
    before = torch.cat([policy.start(readings.shape[1])[:, None], states], 1).transpose(0, 1)
    ends = range(length, len(readings) + 1, every)
    windows = torch.cat([readings[end - length : end].transpose(0, 1) for end in ends])
    sensors = windows.split(list(SENSORS.values()), -1)
    memory = torch.cat([before[end - length] for end in ends])
    return {**dict(zip(SENSORS, sensors, strict=True)), "memory": memory}
