"""Whether numbers are finite: the mean tells, and the answer is not random."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.families import value_only
from howsure.moments.rule import STRUCTURAL, Kind, Target, rule, rule_of, spellings
from howsure.moments.samples import Sample
from howsure.moments.value import Moments

value_only(
    *spellings("isnan", "isinf", "isfinite", "isposinf", "isneginf", inplace=False),
    name="finiteness",
)


@rule(
    *spellings("eq", "ne", "not_equal"),
    name="equality",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), -math.inf)],
    kind=Kind.VALUE_ONLY,
    takes_target=True,
)
def equality(target: Target, input: object, other: object) -> Tensor:
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


@rule_of(
    "nan_to_num",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4))],
    kind=Kind.GATHER,
)
def nan_to_num(
    input: Moments,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Moments:
    """The identity where the mean is finite; a replaced element has variance 0.

    Assumes: nothing; a Gaussian with a finite mean is finite.

    Source: definition.
    """
    finite = torch.isfinite(input.mean)
    var = torch.where(finite, input.var, torch.zeros_like(input.var))
    return Moments(torch.nan_to_num(input.mean, nan, posinf, neginf), var)
