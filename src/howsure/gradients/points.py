"""Noisy points with known correlations, in blocks that are independent of each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.concrete import outside_traces
from howsure.gradients.quadrature import POINTS, RHO, linear_form, variance_form


@dataclass(frozen=True, eq=False)
class Design:
    """The points of one block, and what the inner products of their gradients tell.

    Attributes:
        noise: How independent normal numbers mix into the points of the sensor's noise,
            (points, normals).
        masks: The same for the dropout masks.
        data: Quadratic form that estimates the data variance from the noise's gradients.
        model: Quadratic form that estimates the model variance from the masks' gradients.
        data_linear: Quadratic form for the first-order part of the data variance.
        model_linear: The same for the model variance.
    """

    noise: Tensor
    masks: Tensor
    data: Tensor
    model: Tensor
    data_linear: Tensor
    model_linear: Tensor

    @property
    def points(self) -> int:
        """How many points a block has."""
        return len(self.data)


@functools.cache
def design_for(*, noise: bool, masks: bool) -> Design:
    """One source: two pairs of mirror images. Both: four pairs, two for each of two masks.

    By the law of total variance the data variance is what the noise causes at given masks: four
    points share a mask. The model variance is that of the average over the noise: the gradients
    with respect to the masks are averaged over the four points, and two masks of correlation 1/2
    make the inner product h(1/2), which is right to second order.
    """
    with outside_traces(), torch.inference_mode(False):
        return _design(noise=noise, masks=masks)


def _design(*, noise: bool, masks: bool) -> Design:
    pairs, q, first = _pairs(RHO), variance_form(), linear_form()
    if not (noise and masks):
        return Design(pairs, pairs, q, q, first, first)
    eye = torch.eye(2, dtype=torch.float64)
    each = torch.full((POINTS, 1), 1.0, dtype=torch.float64)
    mixed = torch.kron(_correlated(0.5), each)
    across = torch.ones(2, 2, dtype=torch.float64) - eye
    model = torch.kron(across, each @ each.T) / (2 * POINTS**2)
    half = eye / 2
    data, data_linear = torch.kron(half, q), torch.kron(half, first)
    return Design(torch.kron(eye, pairs), mixed, data, model, data_linear, model)


def _correlated(rho: float) -> Tensor:  # (2, 3)
    """Two points that share one normal number."""
    shared, own = math.sqrt(rho), math.sqrt(1 - rho)
    return torch.tensor([[shared, own, 0], [shared, 0, own]], dtype=torch.float64)


def _pairs(rho: float) -> Tensor:  # (4, 3)
    """a, -a, b, -b."""
    mirror = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    return torch.kron(_correlated(rho), mirror)


def draw(
    mixing: Tensor,  # (points, normals)
    shape: Sequence[int],
    blocks: range,
    seed: int,
    source: int,
) -> Tensor:  # (blocks, points, *shape)
    """The points of some blocks for one source, from the seed alone.

    A block is the same whichever blocks are drawn with it, and for every row of a batch.
    """
    with outside_traces():
        drawn = [
            torch.randn(mixing.shape[1], *shape, generator=_generator(seed, source, block))
            for block in blocks
        ]
        return torch.einsum("pn,bn...->bp...", mixing.float(), torch.stack(drawn))


def _generator(seed: int, source: int, block: int) -> torch.Generator:
    """Streams that differ by source and block; large odd strides keep nearby seeds apart."""
    mixed = seed * 1_000_003 + source * 7_919 + block * 2_147_483_647 + 1
    return torch.Generator().manual_seed(mixed % 2**63)
