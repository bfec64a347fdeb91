"""Several tensors brought to one shape; those that are constant stay constant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from howsure.moments.families import select
from howsure.moments.rule import STRUCTURAL, Kind, Target, rule_of
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments, as_moments


def _together(target: Target, *tensors: Any, **kwargs: object) -> object:
    """The same operation on means and on variances, tensor by tensor.

    Assumes: nothing. Copies of one element are fully correlated, which later rules ignore.

    Source: definition.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    means = target(*select(tensors, "mean"), **kwargs)
    variances = target(*(as_moments(item).var for item in given), **kwargs)
    return tuple(
        _paired(item, mean, var) for item, mean, var in zip(given, means, variances, strict=True)
    )


def _paired(item: Moments | Tensor, mean: Tensor, var: Tensor) -> Moments | Tensor:
    return Moments(mean, var) if isinstance(item, Moments) else mean


def _shapes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 1), draw.moments(4))
    yield Sample(draw.moments(3, 1), draw.constant(4))


def _axes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3), draw.moments(4), indexing="ij")
    yield Sample(draw.constant(3), draw.moments(4), indexing="xy")


for _name, _samples in (("broadcast_tensors", _shapes), ("meshgrid", _axes)):
    rule_of(
        _name,
        inplace=False,
        fidelity=STRUCTURAL,
        samples=_samples,
        kind=Kind.STRUCTURAL,
        takes_target=True,
        views_each=True,
    )(_together)
