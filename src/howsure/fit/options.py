"""What fits of several kinds can be told, and what all of them ask of held-out data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from howsure.errors import HowsureWarning
from howsure.fit.stress import Stress

# The share of the usual number of held-out inputs from which a fit is rough and not an error.
_LEAST_SHARE = 0.4


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
