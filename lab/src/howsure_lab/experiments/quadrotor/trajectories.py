"""Reference trajectories as sums of sines and cosines: every derivative is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from howsure_lab.experiments.quadrotor.vehicle import Array

RADIUS = 4.0  # of circle and lemniscate, as in the paper


class Reference(NamedTuple):
    """Where the vehicle should be, with derivatives: (3, n) each, or (steps, 3, n)."""

    position: Array
    velocity: Array
    acceleration: Array
    jerk: Array


@dataclass(frozen=True, eq=False)
class Trajectories:
    """p(t) = sum_k cosines_k cos(rates_k t) + sines_k sin(rates_k t), of n vehicles.

    Attributes:
        cosines: (3, k, n), m.
        sines: (3, k, n), m.
        rates: (k, n), rad/s.
        headings: (n,), where the vehicle's nose points, rad; 0 is along x.
    """

    cosines: Array
    sines: Array
    rates: Array
    headings: Array

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
            self.cosines[..., index],
            self.sines[..., index],
            self.rates[..., index],
            self.headings[index],
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

    def filled(values: Array, axis: int) -> Array:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, terms - values.shape[axis])
        return np.pad(values, widths)

    return Trajectories(
        np.concatenate([filled(each.cosines, 1) for each in several], -1),
        np.concatenate([filled(each.sines, 1) for each in several], -1),
        np.concatenate([filled(each.rates, 0) for each in several], -1),
        np.concatenate([each.headings for each in several]),
    )
