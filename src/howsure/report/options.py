"""The options of a report: noise levels, names, pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


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
        distances = [abs(math.log(f)) if f > 0 else math.inf for f in self.factors]
        return distances.index(min(distances))

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the slider."""
        return tuple(f"× {factor:g}" for factor in self.factors)

    def __str__(self) -> str:
        """The levels in words."""
        if len(self.factors) == 1:
            return "one"
        multiples = ", ".join(f"{factor:g}" for factor in self.factors)
        where = "assumed by the method; the inputs stay as they are"
        if self.added:
            where = "added to the inputs and assumed by the method"
        return f"{multiples} times the sensor's std, {where}"


@dataclass(frozen=True, eq=False)
class Options:
    """The options of a report; the defaults suit most uses.

    Attributes:
        title: The heading.
        noise_levels: Multiples of the sensor's *std*, at which everything is computed; the page
            has a slider over them. 1 is always among them.
        inputs: "noisy" if the inputs carry the sensor's noise: the slider then changes only the
            noise that is assumed. "clean" adds the assumed noise to them at every level: the slider
            then simulates a better or a worse sensor.
        names: Names of the outputs, or of the classes.
        case_names: Names of the inputs, in the order of the loader.
        images: Pictures of the inputs for the gallery, (inputs, 1 or 3, height, width). By default
            the inputs themselves, if they are such.
        cases: How many cases the table holds; those with the largest errors.
        gallery: How many cases each row of the gallery holds.

    Examples:
        >>> hs.report.Options(title="Roads", names=("angle",)).title
        'Roads'
    """

    title: str = "How sure is this network?"
    noise_levels: Sequence[float] = (0.5, 1.0, 2.0)
    inputs: Literal["noisy", "clean"] = "noisy"
    names: Sequence[str] = ()
    case_names: Sequence[str] = ()
    images: Tensor | None = None
    cases: int = 200
    gallery: int = 8

    def __post_init__(self) -> None:
        """One clear sentence for each wrong option."""
        if self.inputs not in ("noisy", "clean"):
            raise ValueError(f'`inputs` must be "noisy" or "clean", not {self.inputs!r}.')
        for level in self.noise_levels:
            if not (isinstance(level, int | float) and 0 <= level < math.inf):
                raise ValueError(
                    f"`noise_levels` holds {level!r}; give multiples of the sensor's std, such as "
                    "0.5, 1 and 2."
                )
        for name in ("cases", "gallery"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a whole number of at least 1, not {value!r}.")
        for name in ("names", "case_names"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"`{name}` is one string; give a list of them.")

    def levels(self, noise: object) -> Levels:
        """The multiples, ascending; without a noise there is nothing to multiply."""
        factors = {1.0} if noise is None else {1.0, *map(float, self.noise_levels)}
        return Levels(tuple(sorted(factors)), noise is not None and self.inputs == "clean")

    def output_names(self, count: int) -> tuple[str, ...]:
        """A name for every output or class."""
        return self._one_for_each("names", count, "outputs") or tuple(map(str, range(count)))

    def input_names(self, count: int) -> tuple[str, ...]:
        """A name for every input."""
        names = self._one_for_each("case_names", count, "inputs")
        return names or tuple(f"#{i}" for i in range(count))

    def _one_for_each(self, option: str, count: int, what: str) -> tuple[str, ...]:
        names = tuple(map(str, getattr(self, option)))
        if names and len(names) != count:
            raise ValueError(
                f"`{option}` has {len(names)} names for {count} {what}; give one for each."
            )
        return names
