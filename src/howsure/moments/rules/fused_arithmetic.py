"""Fused multiply-adds: `addmm` and its relatives, written as a product and a sum."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.moments.families import composite_of
from howsure.moments.rule import APPROXIMATE, Draw, Sample, Samples


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _sum(input: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    """`beta input + alpha product`; torch does not even read `input` where beta is 0."""
    product = _scaled(product, alpha)
    return product if beta == 0 else _scaled(input, beta) + product


def _shapes(start: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(draw.constant(*start), draw.moments(*left), draw.constant(*right))
        yield Sample(draw.moments(*start), draw.moments(*left), draw.moments(*right))
        yield Sample(draw.moments(*start), draw.moments(*left), draw.constant(*right), beta=0.5)
        yield Sample(draw.moments(*start), draw.constant(*left), draw.moments(*right), alpha=-2)

    return samples


@composite_of("addmm", samples=_shapes((2,), (3, 4), (4, 2)))
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """As `matmul`, for beta input + alpha mat1 @ mat2."""
    return _sum(input, beta, torch.mm(mat1, mat2), alpha)


@composite_of("addmv", samples=_shapes((3,), (3, 4), (4,)))
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """As `matmul`, for beta input + alpha mat @ vec."""
    return _sum(input, beta, torch.mv(mat, vec), alpha)


@composite_of("addr", samples=_shapes((3, 2), (3,), (2,)))
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """As `outer`, for beta input + alpha outer(vec1, vec2)."""
    return _sum(input, beta, torch.outer(vec1, vec2), alpha)


@composite_of("baddbmm", samples=_shapes((2, 3, 2), (2, 3, 4), (2, 4, 2)))
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """As `matmul`, for beta input + alpha batch1 @ batch2."""
    return _sum(input, beta, torch.bmm(batch1, batch2), alpha)


@composite_of("addbmm", samples=_shapes((3, 2), (2, 3, 4), (2, 4, 2)))
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """As `matmul`, for beta input + alpha sum_b batch1_b @ batch2_b."""
    return _sum(input, beta, torch.bmm(batch1, batch2).sum(0), alpha)


def _products(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4), draw.moments(4))
    yield Sample(draw.constant(3, 4), draw.moments(4), draw.constant(3, 1), value=-0.5)
    twice = draw.moments(3, 4)
    yield Sample(draw.moments(3, 4), twice, twice)


@composite_of("addcmul", samples=_products)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """As `mul`, for input + value tensor1 tensor2."""
    return input + _scaled(tensor1 * tensor2, value)


def _quotients(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), draw.moments(3, 4), draw.positive(4))
    yield Sample(draw.moments(3, 4), draw.constant(4), draw.moments(3, 4, mean=8, std=0.2))


@composite_of("addcdiv", samples=_quotients, fidelity=APPROXIMATE, error=0.05)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """As `div`, for input + value tensor1 / tensor2."""
    return input + _scaled(tensor1 / tensor2, value)
