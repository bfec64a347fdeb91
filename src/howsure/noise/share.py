"""A share of a variance: how well it is known, and whether chance explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A share as many standard deviations above 0 is not there by chance (6e-5); one below a hundredth
# is of no consequence.
CHANCE, _NEGLIGIBLE = 4.0, 0.01


@dataclass(frozen=True)
class Share:
    """A share of the variance, or a correlation: its value, and how well it is known.

    Attributes:
        value: The estimate.
        error: Its standard error for Gaussian noise.
        chance: As much is there by chance.
    """

    value: float
    error: float
    chance: float

    @property
    def is_clear(self) -> bool:
        """Whether it is neither chance nor too small to matter."""
        return abs(self.value) > max(_NEGLIGIBLE, self.chance)

    def in_percent(self) -> str:
        """The share and its error."""
        return f"{100 * self.value:.2g} +- {100 * self.error:.1g} %"


def by_chance(freedom: float) -> float:
    """How far a variance of so many degrees of freedom is above the true one by chance, relative.

    The cube root of a chi square is almost normal (Wilson & Hilferty 1931).
    """
    cube_var = 2 / (9 * freedom)
    return (1 - cube_var + CHANCE * math.sqrt(cube_var)) ** 3 - 1


def share_of(value: float, chance: float, freedom: float) -> Share:
    """A share of the variance, which has so many degrees of freedom; it is not negative."""
    kept = max(0.0, value)
    return Share(kept, math.hypot(chance / CHANCE, kept * math.sqrt(2 / freedom)), chance)
