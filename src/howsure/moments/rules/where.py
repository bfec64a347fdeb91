"""A choice between two tensors by a constant condition."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.rule import STRUCTURAL, Kind, rule
from howsure.moments.rules.scatter import placed
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments

_MASK = torch.tensor([True, False, True, False])


def _choices(draw: Draw) -> Iterable[Sample]:
    yield Sample(_MASK, draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(_MASK, draw.moments(3, 4), 0.0)
    yield Sample(_MASK, draw.constant(4), draw.moments(3, 1))


@rule(
    torch.where,
    *(getattr(torch.ops.aten.where, name) for name in ("self", "ScalarOther", "ScalarSelf")),
    name="where",
    fidelity=STRUCTURAL,
    samples=_choices,
    kind=Kind.ASSIGNMENT,
)
def where(condition: Tensor, *args: object, **kwargs: object) -> Moments:
    """Mean and variance of the branch that a constant condition chooses.

    Assumes: a constant condition.

    Source: definition.
    """
    if isinstance(condition, Moments):
        raise NoRuleError(
            "A random condition makes a mixture, which is not Gaussian; compute the condition "
            "from a tensor without noise."
        )
    return placed(torch.where, {1: "input", 2: "other"}, condition, *args, **kwargs)


@rule(
    Tensor.where,
    name="where (method)",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), _MASK, draw.moments(4))],
    kind=Kind.ASSIGNMENT,
)
def where_method(*args: object, **kwargs: object) -> Moments:
    """As `where(condition, self, other)`.

    Assumes: a constant condition.

    Source: `where`.
    """
    self, condition, *other = args
    return where(condition, self, *other, **kwargs)
