"""Scalar functions that are smooth between known kinks: quadrature piece by piece."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.families import in_float32
from howsure.moments import Moments
from howsure.registry import EXACT, Rule, rule, spellings
from howsure.samples import one_of_each_shape

# Gauss-Legendre nodes for each piece, over 6 standard deviations in all: exact to 1e-6.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_REACH = 6.0
# Elements per block, so that a block times the nodes stays in the processor's cache.
_BLOCK = 8192


def piecewise_expectation(
    function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, kinks: Sequence[float]
) -> Moments:
    """Mean and variance of `function(x)`, elementwise, for x ~ N(mean, var).

    Centred, so that the variance cannot be negative; tiny variances are widened for the
    evaluation and the result is scaled back, as in `howsure.quadrature.expectation`.
    """
    flat = mean.reshape(-1), var.reshape(-1)
    blocks = zip(*(t.split(_BLOCK) for t in flat), strict=True)
    parts = [_quadrature(function, m, v, kinks) for m, v in blocks]
    return Moments(*(torch.cat(column).reshape(mean.shape) for column in zip(*parts, strict=True)))


def _quadrature(
    function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, kinks: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Mean and variance of one block."""
    resolution = 1e-3 if var.dtype == torch.float32 else 1e-5
    widened = torch.maximum(var, (resolution * mean.detach().abs().clamp(min=1)).square())
    std, scale = widened.sqrt(), var / widened
    z, weight = _nodes(mean.detach(), std.detach(), kinks)
    centre = function(mean)
    value = function(mean + std * z) - centre
    shift = (weight * value).sum(0)
    deviation = value - shift
    return centre + shift * scale, (weight * deviation.square()).sum(0) * scale


def _nodes(mean: Tensor, std: Tensor, kinks: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Nodes z and weights for N(0, 1), one set per element, in front; pieces end at the kinks."""
    inner = [((kink - mean) / std).clamp(-_REACH, _REACH) for kink in kinks]
    edges = [torch.full_like(mean, -_REACH), *inner, torch.full_like(mean, _REACH)]
    column = (-1, *[1] * mean.dim())
    node = torch.as_tensor(_NODES, dtype=mean.dtype, device=mean.device).reshape(column)
    share = torch.as_tensor(_WEIGHTS, dtype=mean.dtype, device=mean.device).reshape(column)
    pieces = [
        ((low + high) / 2 + (high - low) / 2 * node, (high - low) * share)
        for low, high in itertools.pairwise(edges)
    ]
    z = torch.cat([nodes for nodes, _ in pieces])
    weight = torch.cat([width for _, width in pieces]) * torch.exp(-0.5 * z.square())
    return z, weight / weight.sum(0)


def kinked(function: Callable[..., Tensor], *names: str, kinks: Sequence[float]) -> Rule:
    """Registers a scalar function that is smooth between `kinks`."""

    @rule(
        function,
        *(spelling for spelling in spellings(*names) if spelling is not function),
        name=names[0],
        fidelity=EXACT,
        samples=one_of_each_shape,
        error=1e-4,
        pointwise=True,
    )
    def moments(input: Moments, inplace: bool = False) -> Moments:
        """E and Var of f(x) by centred quadrature on each piece between its kinks.

        Assumes: independent elements. Exact up to the quadrature's error, below 1e-4.

        Source: Gauss-Legendre rule with 20 nodes for each piece.
        """
        return in_float32(lambda x: piecewise_expectation(function, *x, kinks), input)

    return moments


kinked(F.hardswish, "hardswish", kinks=(-3.0, 3.0))
