"""Gradients of every pixel with respect to the masks of all layers, along some directions.

z' v = (f(1 + step v) - f(1)) / step for every pixel at once: one forward pass for each direction v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.multipliers import Site
from howsure.posterior.pixels import PixelGradients, by_pixel
from howsure.probe import probe_model
from howsure.problem import Problem, Sources
from howsure.setup import Setup

# Novelty of a U-Net with 176 masks in fog, in multiples of that on known scenes: 1.4 with 8
# directions, 2.1 with 16, 2.2 with 32, 2.6 with 64, 3.3 with one for each mask.
DIRECTIONS = 32
# Directions that are checked, and how far the derivatives of two steps may be apart, relative to
# them: curvature and kinks are below it, a staircase is not.
_CHECKED, _DIFFERENCE = 4, 0.3
# Elements of inputs that run at once.
_ELEMENTS = 2**18


@torch.inference_mode(False)
def along_directions(setup: Setup, x: Any) -> PixelGradients:
    """The derivatives of every pixel along fixed directions of the masks of all layers."""
    problem = _watched(setup, x)
    with torch.no_grad():
        plain = problem.plain()
        found = _derivatives(problem, plain)  # (directions, inputs, *output)
    output = _output(problem)
    first, count = place_of(output)
    along = torch.stack([by_pixel(each, count, channels_first=first) for each in found], 3)
    ones = along.new_ones(count, DIRECTIONS)
    masks = sum(math.prod(site.units) for site in problem.sources.sites)
    return PixelGradients(output, along, torch.ones_like(along[..., 0]), ones, first, masks)


@torch.inference_mode(False)
def has_derivatives(setup: Setup, x: Any) -> bool:
    """Whether steps of two lengths tell the same derivatives: steps of a staircase do not."""
    problem = _watched(setup, x)
    with torch.no_grad():
        plain = problem.plain()
        short, long = (_derivatives(problem, plain, size, _CHECKED) for size in (1.0, 2.0))
    return bool(short.any()) and bool((short - long).norm() <= _DIFFERENCE * short.norm())


def _watched(setup: Setup, x: Any) -> Problem:
    """The model with a multiplier at every unit."""
    probe = setup.watching(x).once(probe_model, x)
    return Problem(setup, x, probe, Sources.of(setup, x, probe.layout, watch=True))


def _output(problem: Problem) -> Tensor:
    """The first tensor of the plain output."""
    assert problem.structure is not None
    return problem.structure.tensors[0]


def place_of(output: Tensor) -> tuple[bool, int]:
    """Whether an output has channels, which are then on its second axis, and how many.

    (batch, channels, height, width) has; (batch, height, width) is one map.
    """
    return (True, output.shape[1]) if output.dim() > 3 else (False, 1)


def directions(sites: Sequence[Site]) -> list[Tensor]:  # (directions, 1, *units) each
    """Random signs for every multiplier, always the same: a posterior is about its directions."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(DIRECTIONS, 1, *site.units) for site in sites]
    return [2.0 * torch.randint(2, shape, generator=generator) - 1 for shape in shapes]


def _derivatives(
    problem: Problem, plain: Tensor, size: float = 1.0, count: int = DIRECTIONS
) -> Tensor:
    """Differences of outputs; the step is so small that curvature counts as little as rounding."""
    output = _output(problem)
    step = size * torch.finfo(output.dtype).eps ** (1 / 3)
    elements = sum(tensor[:1].numel() for tensor in problem.tensors) * max(1, problem.rows)
    at_once = problem.setup.chunk or max(1, _ELEMENTS // max(1, elements))
    signs = [s.to(problem.device, problem.wide) for s in directions(problem.sources.sites)]
    differences = []
    for some in torch.arange(count).split(at_once):
        multipliers = [1 + step * s[some].expand(-1, problem.rows, *s.shape[2:]) for s in signs]
        differences.append((problem.run(len(some), {}, multipliers) - plain) / step)
    return torch.cat(differences).reshape(count, *output.shape)
