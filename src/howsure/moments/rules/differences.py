"""Differences of neighbouring elements."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.rule import rule_of
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments, as_moments


def _rows(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 5))
    yield Sample(draw.moments(5, 3), n=2, dim=0)
    yield Sample(draw.moments(3, 5), 1, -1, draw.moments(3, 1), draw.constant(3, 2))


@rule_of("diff", inplace=False, samples=_rows)
def diff(
    input: Moments,
    n: int = 1,
    dim: int = -1,
    prepend: Moments | Tensor | None = None,
    append: Moments | Tensor | None = None,
) -> Moments:
    """Var = sum_k binomial(n, k)**2 v of the n + 1 neighbours.

    Assumes: independent elements; exact for each output.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    parts = [as_moments(x) for x in (prepend, input, append) if x is not None]
    mean = torch.diff(torch.cat([part.mean for part in parts], dim), n, dim)
    var = torch.cat([part.var for part in parts], dim)
    count = var.shape[dim] - n
    spread = [var.narrow(dim, k, count) * math.comb(n, k) ** 2 for k in range(n + 1)]
    return Moments(mean, torch.stack(spread).sum(0))
