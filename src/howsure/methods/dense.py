"""Dense outputs with what `fit` found: the sensor's part by samples, the model's along directions.

z' v = (f(1 + step v) - f(1)) / step for every pixel at once: one forward pass for each direction v
of the multipliers of all layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from howsure.methods.modeled import with_parts, without_noise
from howsure.multipliers.sites import Site
from howsure.posterior.pixels import pixel_variance
from howsure.posterior.scores import Scores
from howsure.posterior.variance_model import VarianceParts
from howsure.prediction import Prediction
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


@dataclass(frozen=True, eq=False)
class PixelGradients:
    """Derivatives of every pixel along fixed directions of the multipliers.

    Attributes:
        output: The output of the network, (batch, channels, height, width) or, of one map,
            (batch, height, width).
        z: (batch, pixels, outputs, directions); outputs are channels.
        masks: The number of multipliers.
    """

    output: Tensor
    z: Tensor
    masks: int

    def shaped(self, values: Tensor) -> Tensor:
        """Values (batch, pixels, outputs) in the shape and type of the output."""
        values = values.mT if self.output.dim() > 3 else values
        return values.reshape(self.output.shape).to(self.output.dtype)


def by_pixel(values: Tensor) -> Tensor:
    """Values in the shape of the output as (batch, pixels, outputs)."""
    return values.flatten(2).mT if values.dim() > 3 else values.flatten(1)[:, :, None]


@torch.inference_mode(False)
def gradients_at_pixels(setup: Setup, x: Any) -> PixelGradients:
    """The derivatives of every pixel along fixed directions of the multipliers of all layers."""
    problem = _with_multipliers(setup, x)
    with torch.no_grad():
        plain = problem.plain()
        along = _derivatives(problem, plain)  # (directions, batch, *output)
    z = torch.stack([by_pixel(derivative) for derivative in along], 3)
    masks = sum(math.prod(site.units) for site in problem.sources.sites)
    return PixelGradients(_output(problem), z, masks)


@torch.inference_mode(False)
def has_derivatives(setup: Setup, x: Any) -> bool:
    """Whether steps of two lengths tell the same derivatives: steps of a staircase do not."""
    problem = _with_multipliers(setup, x)
    with torch.no_grad():
        plain = problem.plain()
        short, long = (_derivatives(problem, plain, size, _CHECKED) for size in (1.0, 2.0))
    return bool(short.any()) and bool((short - long).norm() <= _DIFFERENCE * short.norm())


def _with_multipliers(setup: Setup, x: Any) -> Problem:
    """The model with a multiplier at every unit."""
    probe = setup.with_unit_multipliers(x).cached(probe_model, x)
    return Problem(setup, x, probe, Sources.of(setup, x, probe.layout, watch=True))


def _output(problem: Problem) -> Tensor:
    """The first tensor of the plain output."""
    assert problem.structure is not None
    return problem.structure.tensors[0]


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


def with_model_var(setup: Setup, x: Any, sampled: Prediction | None) -> Prediction:
    """The prediction at every pixel, as the variance model says.

    Args:
        setup: With a variance model of dense outputs.
        x: The inputs.
        sampled: What samples say about the sensor; `None` without noise.
    """
    model = setup.variance_model
    assert model is not None and model.dense and model.posterior is not None
    pixels = gradients_at_pixels(setup, x)
    m = pixel_variance(model.posterior, pixels.z, pixels.masks)
    sampled = without_noise(pixels.output) if sampled is None else sampled
    mean, data = (by_pixel(v).flatten(0, 1) for v in (sampled.mean, sampled.data_var))
    parts = model.parts(replace(Scores.of(mean, data), m=m.flatten(0, 1)))

    def in_rows(values: Tensor) -> Tensor:  # (batch * pixels, outputs) -> (batch, numbers)
        return pixels.shaped(values.reshape(m.shape)).flatten(1)

    names = [field.name for field in fields(parts) if field.name != "joint"]
    rows = {name: in_rows(getattr(parts, name)) for name in names}
    joint = parts.novelty.reshape(m.shape).mean((1, 2)) / model.joint_known
    return with_parts(setup, sampled, VarianceParts(**rows, joint=joint))
