"""Gates: one quantity lets another one through, or blends two."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import composite_of
from howsure.moments.rule import Draw, Sample, rule_of
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype

Operand = Moments | Tensor


def _blends(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(draw.moments(3, 4), draw.constant(3, 4), draw.moments(4))
    yield Sample(draw.moments(3, 4), draw.moments(4), 0.3)
    yield Sample(draw.constant(3, 4), draw.moments(3, 4), draw.positive(3, 1))


@rule_of("lerp", samples=_blends)
def lerp(input: Operand, end: Operand, weight: Operand | float) -> Moments:
    """E = a + w (b - a), Var = (1 - w)**2 v_a + w**2 v_b + v_w [(b - a)**2 + v_a + v_b].

    Assumes: independent operands; exact then. The two places where a occurs are seen as one,
    unlike in `a + w * (b - a)`.

    Source: law of total variance.
    """
    if input is end and isinstance(input, Moments):
        return Moments(input.mean.clone(), input.var.clone())
    mean = torch.lerp(mean_of(input), mean_of(end), mean_of(weight))
    dtype = variance_dtype(mean.dtype)
    a, b = mean_of(input).to(dtype), mean_of(end).to(dtype)
    w = mean_of(weight)
    w = w.to(dtype) if isinstance(w, Tensor) else w
    ends = var_of(input) + var_of(end)
    var = (1 - w) ** 2 * var_of(input) + w**2 * var_of(end)
    var = var + var_of(weight) * (b - a).square()
    # The product may be a number: its sum with zeros has the shape of the result.
    both = torch.zeros_like(mean, dtype=dtype) + var_of(weight) * ends
    return Moments(mean, var + both)


@composite_of(
    "glu",
    inplace=False,
    samples=lambda draw: [Sample(draw.moments(3, 4)), Sample(draw.moments(2, 4, 3), dim=1)],
    error=1e-3,
)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`a sigmoid(b)` for the two halves a and b.

    Assumes: independent halves; exact then, up to the quadrature's error.

    Source: Dauphin et al. 2017; `mul`, `sigmoid`.
    """
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)
