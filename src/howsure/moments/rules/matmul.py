"""Matrix products: exact for independent operands, in which constants and Gaussians may mix.

`x @ x.T` shares its data: the transpose is a different tensor to the rules, so the two sides
count as independent. That is right off the diagonal, where two different rows meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from howsure.moments.families import bilinear
from howsure.moments.rule import EXACT, Draw, Sample, Samples, Target, rule, rule_of
from howsure.moments.rules.powers import square
from howsure.moments.value import Moments

Operand = Moments | Tensor


def _products(left: tuple[int, ...], right: tuple[int, ...]) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(draw.moments(*left), draw.moments(*right))
        yield Sample(draw.moments(*left), draw.constant(*right))
        yield Sample(draw.constant(*left), draw.moments(*right))

    return samples


def _stacks(draw: Draw) -> Iterable[Sample]:
    yield from _products((2, 3, 4), (4, 2))(draw)
    yield Sample(draw.moments(4), draw.moments(4))
    yield Sample(draw.moments(3, 1, 2, 4), draw.moments(2, 4, 3))


@rule_of("matmul", inplace=False, samples=_stacks)
def matmul(input: Operand, other: Operand) -> Moments:
    """E = m1 @ m2, Var = m1**2 @ v2 + v1 @ m2**2 + v1 @ v2.

    Assumes: independent operands; exact then. A tensor and its own transpose are not independent.

    Source: sums of products of independent variables, Goodman 1960.
    """
    return bilinear(torch.matmul, input, other)


@rule(
    torch.Tensor.__rmatmul__,
    name="rmatmul",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(3, 4), draw.constant(2, 3))],
)
def rmatmul(self: Operand, other: Operand) -> Moments:
    """As `matmul(other, self)`."""
    return bilinear(torch.matmul, other, self)


def _matrix_product(target: Target, input: Operand, mat2: Operand) -> Moments:
    """As `matmul` of matrices, or of batches of them."""
    return bilinear(target, input, mat2)


for _name, _shapes in (("mm", ((3, 4), (4, 2))), ("bmm", ((2, 3, 4), (2, 4, 2)))):
    rule_of(_name, inplace=False, samples=_products(*_shapes), takes_target=True)(_matrix_product)


@rule_of("mv", inplace=False, samples=_products((3, 4), (4,)))
def mv(input: Operand, vec: Operand) -> Moments:
    """As `matmul` of a matrix and a vector."""
    return bilinear(torch.mv, input, vec)


def _vectors(draw: Draw) -> Iterable[Sample]:
    yield from _products((4,), (4,))(draw)
    twice = draw.moments(4)
    yield Sample(twice, twice)


@rule_of("dot", "vdot", inplace=False, samples=_vectors)
def dot(input: Operand, other: Operand) -> Moments:
    """As `matmul` of two vectors; `dot(x, x)` is the sum of squares."""
    if input is not other:
        return bilinear(torch.dot, input, other)
    assert isinstance(input, Moments)
    squares = square(input)
    return Moments(squares.mean.sum(), squares.var.sum())


def _inner_products(draw: Draw) -> Iterable[Sample]:
    yield from _products((2, 4), (3, 4))(draw)
    yield Sample(draw.moments(4), draw.moments(4))


@rule_of("inner", inplace=False, samples=_inner_products)
def inner(input: Operand, other: Operand) -> Moments:
    """As `matmul` with the other operand transposed."""
    return bilinear(torch.inner, input, other)


@rule_of("outer", "ger", inplace=False, samples=_products((3,), (4,)))
def outer(input: Operand, vec2: Operand) -> Moments:
    """E = m1 m2, Var = m1**2 v2 + m2**2 v1 + v1 v2 of every pair.

    Assumes: independent operands; exact then. The diagonal of `outer(x, x)` is a square.

    Source: product of independent variables, Goodman 1960.
    """
    return bilinear(torch.outer, input, vec2)


def _contractions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 3, 4), draw.moments(3, 4, 2))
    yield Sample(draw.moments(3, 4), draw.constant(4, 3), dims=([0, 1], [1, 0]))
    yield Sample(draw.moments(3, 4), draw.constant(4, 2), 1)


@rule_of("tensordot", inplace=False, samples=_contractions)
def tensordot(
    a: Operand, b: Operand, dims: Any = 2, *more: Any, out: None = None, **kwargs: Any
) -> Moments:
    """As `matmul` over the contracted dimensions."""
    # Exported programs pass the two lists of dimensions apart.
    arguments = (dims, *more)
    contract = torch.ops.aten.tensordot.default if more or kwargs else torch.tensordot
    return bilinear(lambda x, y: contract(x, y, *arguments, **kwargs), a, b)
