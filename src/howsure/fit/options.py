"""What fits of several kinds can be told, and what all of them ask of held-out data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

from torch import Tensor

from howsure.errors import HowsureWarning
from howsure.fit.stress import Stress
from howsure.problem import Layout, Sources
from howsure.setup import Setup

Item = TypeVar("Item")
Result = TypeVar("Result")

# The share of the usual number of held-out inputs from which a fit is rough and not an error.
_LEAST_SHARE = 0.4
# Random numbers that an input should see at least, and blocks of points at the most.
_ELEMENTS = 2**10
_MOST_BLOCKS = 8


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of every fit.

    Attributes:
        inputs: "noisy" if the inputs carry the noise of deployment, as they must; "clean" adds
            the setup's noise to them.
        training_data: The training data set or loader, to warn if it is the held-out one.
        show_progress: Show a bar.
    """

    inputs: str = "noisy"
    training_data: object = None
    show_progress: bool = True

    def __post_init__(self) -> None:
        """One clear sentence for a wrong option."""
        self._check_choice("inputs", ("noisy", "clean"))

    def _check_choice(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ValueError(f"`{name}` must be one of {allowed}, not {getattr(self, name)!r}.")


@dataclass(frozen=True, kw_only=True)
class KnownOptions(FitOptions):
    """The options of fits that compare an input with known ones.

    Attributes:
        train_inputs: Unlabelled inputs like those that the network was trained on: a tensor, an
            array, a data set, a loader. Without them the held-out inputs serve, in folds.
        stress: Corruptions that keep the target, to fit how fast the uncertainty grows: "images",
            "tables", or functions of an input. Without them it grows at the usual rate.
        growth: Whether the uncertainty grows with the distance from the known inputs.
    """

    train_inputs: object = None
    stress: Stress | None = None
    growth: bool = True


@dataclass(frozen=True)
class Share:
    """Which batches this process works on: `rank`, `rank + size`, `rank + 2 * size`, ...

    The results of all processes come in the batches' order, so that the outcome is that of one
    process, bit for bit: nothing is summed before all parts are in place.

    Attributes:
        rank: The number of this process.
        size: How many processes there are.
        gather: From this process's results to those of every process, in the order of ranks.
    """

    rank: int = 0
    size: int = 1
    gather: Callable[[list[Any]], list[list[Any]]] = lambda results: [results]

    def map(self, function: Callable[[int, Item], Result], batches: Iterable[Item]) -> list[Result]:
        """`function(index, batch)` of every batch, computed together and known to all."""
        numbered = enumerate(batches)
        return self.joined([function(i, b) for i, b in numbered if i % self.size == self.rank])

    def joined(self, results: list[Result]) -> list[Result]:
        """The results of all processes in the order of the batches, from those of this one."""
        parts = self.gather(results)
        count = sum(map(len, parts))
        return [parts[index % self.size][index // self.size] for index in range(count)]


WHOLE = Share()


class FitKeywords(TypedDict, total=False):
    """All options of `Uncertain.fit`, so that an editor completes them and marks a typo.

    A test compares them with those of each kind of fit.
    """

    # Every fit.
    inputs: Literal["noisy", "clean"]
    training_data: object
    show_progress: bool
    # A posterior, or a temperature.
    train_inputs: object
    stress: Stress | None
    growth: bool
    # A posterior.
    train: object
    masks: bool
    residual_var: float | None
    noise_factor: float | None
    cap: bool
    dense_masks: Literal["all", "head"]
    # A dropout rate.
    search: Literal["auto", "grid", "closed_form"]
    rates: Sequence[float] | None
    samples: int
    per_layer: bool
    fit_residual_var: bool | None
    fit_noise: bool
    objective: Literal["auto", "gaussian", "one_hot", "categorical"]
    floor: float | None
    share: Share


def check_count(batches: Sequence[tuple[object, Tensor]], fewest: int, what: str) -> None:
    """A warning for fewer held-out inputs than that, an error for less than 40 % of them."""
    count = sum(len(target) for _, target in batches)
    if _LEAST_SHARE * fewest <= count < fewest:
        warnings.warn(
            f"There are {count} held-out inputs; a {what} from fewer than {fewest} is rough.",
            HowsureWarning,
            stacklevel=6,
        )
    elif count < fewest:
        raise ValueError(
            f"There are {count} held-out inputs, and a {what} needs at least "
            f"{math.ceil(_LEAST_SHARE * fewest)}, better {fewest} or more; give "
            'more, or fit the dropout rate: `model="dropout"` (`--model-part dropout`).'
        )


def points_for(setup: Setup, x: object, layout: Layout) -> int:
    """One block for large networks; more where inner products average over few summands."""
    sources = Sources.of(setup, x, layout)
    blocks = max(1, min(_MOST_BLOCKS, _ELEMENTS // max(1, sources.elements)))
    return blocks * sources.design.points
