"""Smaller operations of linear algebra, for independent operands."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from howsure.moments.families import bilinear, composite, composite_of
from howsure.moments.rule import APPROXIMATE, EXACT, Draw, Sample, rule, rule_of
from howsure.moments.rules.multilinear import multilinear
from howsure.moments.value import HALF_PRECISION, Moments, mean_of


@composite_of("trace", inplace=False, samples=lambda draw: [Sample(draw.moments(3, 4))])
def trace(input: Tensor) -> Tensor:
    """As `sum` of the diagonal."""
    return input.diagonal().sum()


def _pairs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3), draw.moments(2, 3))
    yield Sample(draw.moments(2, 3), draw.constant(2, 3))


@rule_of("kron", inplace=False, samples=_pairs)
def kron(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """As `outer`, of every pair of elements."""
    return bilinear(torch.kron, input, other)


@composite(
    torch.linalg.cross, torch.ops.aten.linalg_cross.default, name="linalg_cross", samples=_pairs
)
def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """As `mul`, for a_j b_k - a_k b_j: products of different elements, and their difference."""
    ahead, behind = (tuple(x.roll(shift, dim) for x in (input, other)) for shift in (-1, -2))
    return ahead[0] * behind[1] - behind[0] * ahead[1]


@composite_of(
    "cross", inplace=False, samples=lambda draw: [Sample(draw.moments(3, 2), draw.moments(3, 2), 0)]
)
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """As `linalg_cross`, by default over the first dimension of size 3."""
    first = next(axis for axis, size in enumerate(input.shape) if size == 3)
    return torch.linalg.cross(input, other, dim=first if dim is None else dim)


@composite_of(
    "hypot",
    samples=lambda draw: [Sample(draw.moments(3, 4), draw.moments(4))],
    fidelity=APPROXIMATE,
    error=0.1,
)
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """As `vector_norm` of the pair."""
    return torch.linalg.vector_norm(torch.stack(torch.broadcast_tensors(input, other)), 2, 0)


def _chains(draw: Draw) -> Iterable[Sample]:
    yield Sample([draw.moments(2, 3), draw.constant(3, 4), draw.moments(4, 2)])
    yield Sample([draw.moments(2, 3), draw.constant(3, 4), draw.constant(4, 2)])


@rule(
    torch.linalg.multi_dot,
    torch.ops.aten.linalg_multi_dot.default,
    name="multi_dot",
    fidelity=EXACT,
    samples=_chains,
)
def multi_dot(tensors: Sequence[Moments | Tensor]) -> Moments:
    """As `einsum` of all matrices at once, whatever the order of evaluation."""
    names = [string.ascii_letters[i : i + 2] for i in range(len(tensors))]
    # The first and the last operand may be vectors.
    names[0] = names[0][2 - mean_of(tensors[0]).dim() :]
    names[-1] = names[-1][: mean_of(tensors[-1]).dim()]
    ends = (names[0][:1] if len(names[0]) == 2 else "") + (names[-1][1:])
    equation, dtype = ",".join(names) + "->" + ends, mean_of(tensors[0]).dtype
    if dtype not in HALF_PRECISION:
        return multilinear(equation, tensors)
    # Which products come first is torch's choice: one of ours must not overflow in their place.
    found = multilinear(equation, [_in_single(each) for each in tensors])
    return Moments(found.mean.to(dtype), found.var)


def _in_single(operand: Moments | Tensor) -> Moments | Tensor:
    if isinstance(operand, Moments):
        return Moments(operand.mean.float(), operand.var)
    return operand.float()
