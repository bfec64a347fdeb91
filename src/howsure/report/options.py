"""What a user may want to say about a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from howsure.report.levels import Levels


@dataclass(frozen=True, eq=False)
class Options:
    """How a report is made; the defaults suit most.

    Attributes:
        title: The heading.
        noise_levels: Multiples of the sensor's *std*, at which everything is computed; the page
            has a slider over them. 1 is always among them.
        inputs: "noisy" if the inputs carry the sensor's noise: the slider then changes only the
            noise that is assumed. "clean" adds the noise to them, at every level as much as is
            assumed: the slider then is a better or a worse sensor.
        names: Names of the outputs, or of the classes.
        case_names: Names of the inputs, in the order of the loader.
        images: Pictures of the inputs for the gallery, (inputs, 1 or 3, height, width). By default
            the inputs themselves, if they are such.
        cases: How many cases the table holds; those with the largest errors.
        gallery: How many cases each row of the gallery holds.
    """

    title: str = "How sure is this network?"
    noise_levels: Sequence[float] = (0.5, 0.75, 1.0, 1.5, 2.0)
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
        if noise is None:
            return Levels((1.0,))
        factors = {float(level) for level in self.noise_levels} | {1.0}
        return Levels(tuple(sorted(factors)), self.inputs == "clean")

    def output_names(self, count: int) -> tuple[str, ...]:
        """A name for every output or class."""
        return _checked(self.names, count, "names", "outputs") or tuple(map(str, range(count)))

    def input_names(self, count: int) -> tuple[str, ...]:
        """A name for every input."""
        names = _checked(self.case_names, count, "case_names", "inputs")
        return names or tuple(f"#{i}" for i in range(count))


def _checked(names: Sequence[str], count: int, option: str, what: str) -> tuple[str, ...]:
    if names and len(names) != count:
        raise ValueError(
            f"`{option}` has {len(names)} names for {count} {what}; give one for each."
        )
    return tuple(str(name) for name in names)
