"""Whether numbers are finite: the mean tells, and the answer is not random."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from howsure.errors import NoRuleError
from howsure.families import value_only
from howsure.moments import Moments
from howsure.registry import STRUCTURAL, Target, rule, spellings
from howsure.samples import Sample

value_only(
    *spellings("isnan", "isinf", "isfinite", "isposinf", "isneginf", inplace=False),
    name="finiteness",
)


@rule(
    *spellings("eq", "ne", "not_equal"),
    name="equality",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), -math.inf)],
    family="value only",
    takes_target=True,
)
def equality(target: Target, input: Any, other: Any) -> Tensor:
    """Whether the mean is infinite, as a mask leaves it; other comparisons are random.

    Assumes: a comparison with infinity.

    Source: definition.
    """
    if isinstance(input, Moments) and isinstance(other, float) and math.isinf(other):
        return target(input.mean, other)
    raise NoRuleError(
        "Whether a Gaussian equals a value is random, not a mask. Compute the mask from a tensor "
        "without noise."
    )
