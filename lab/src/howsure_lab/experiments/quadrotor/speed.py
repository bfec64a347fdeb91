"""How fast the simulator is: `python -m howsure_lab.experiments.quadrotor.speed`."""

from __future__ import annotations

import time

import numpy as np

from howsure_lab.experiments.quadrotor.flight import World, fly, random_smooth

_SECONDS, _REPEATS = 5.0, 5


def times_real_time(vehicles: int) -> float:
    """Simulated seconds of all vehicles per second of the clock, full physics, the best of five."""
    speeds = np.linspace(1.0, 8.0, vehicles)
    world = World(random_smooth(speeds, np.random.default_rng(0)))
    elapsed = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        fly(world, _SECONDS)
        elapsed.append(time.perf_counter() - started)
    return vehicles * _SECONDS / min(elapsed)


if __name__ == "__main__":
    for count in (1, 16, 128):
        print(f"{count:4d} vehicles: {times_real_time(count):6.0f} x real time")
