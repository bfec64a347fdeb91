"""The noise levels of a report, and what a change of level means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from howsure import noise as noises


@dataclass(frozen=True)
class Levels:
    """Multiples of the sensor's std, ascending.

    Attributes:
        factors: The multiples.
        added: Whether the inputs carry as much noise as the method assumes, at every level; else
            only what is assumed changes.
    """

    factors: tuple[float, ...]
    added: bool = False

    @property
    def start(self) -> int:
        """The level that is shown first: the stated noise, or the one nearest to it."""
        return min(range(len(self.factors)), key=lambda i: _distance(self.factors[i]))

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the slider."""
        return tuple(f"× {factor:g}" for factor in self.factors)

    def __len__(self) -> int:
        return len(self.factors)

    def __str__(self) -> str:
        """The levels in words."""
        if len(self) == 1:
            return "one"
        listed = ", ".join(f"{factor:g}" for factor in self.factors)
        if self.added:
            return f"{listed} times the sensor's std, added to the inputs and assumed by the method"
        return (
            f"{listed} times the sensor's std, assumed by the method; the inputs stay as they are"
        )


def scaled(noise: object, factor: float) -> object:
    """The noise with `factor` times its std, of one or several inputs."""
    return noise if factor == 1 else noises.scaled(noise, factor * factor)


def _distance(factor: float) -> float:
    return abs(math.log(factor)) if factor > 0 else math.inf
