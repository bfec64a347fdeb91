"""Exponential linear units: straight above 0, exponential below, with a kink in between."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import of_elements, pointwise
from howsure.moments.numerics.quadrature import expectation
from howsure.moments.rule import EXACT, Draw, Kind, Sample, one_of_each_shape, rule
from howsure.moments.value import Moments


def _exponential_unit(
    mean: Tensor, var: Tensor, plain: Tensor, slope: float, depth: float, rate: float
) -> Moments:
    """Moments of the unit with slope x above 0, depth (e^(rate x) - 1) below.

    In units of the tail, u = rate x. The noise moves the mean away from `plain`, its plain value.
    """
    if rate <= 0:
        raise NoRuleError("The unit must level off below 0: choose a positive `alpha` for `celu`.")

    def value(u: Tensor) -> Tensor:
        return torch.where(u > 0, slope / rate * u, depth * torch.expm1(u.clamp(max=0)))

    def deviation(u: Tensor, step: Tensor) -> Tensor:
        """On one side of the kink no digits are lost, however small the step or flat the tail."""
        end = u + step
        left = depth * torch.exp(torch.maximum(u, end).clamp(max=0))
        below = -left * torch.expm1(-step.abs()) * step.sign()
        one_side = torch.where(u > 0, slope / rate * step, below)
        return torch.where((u > 0) == (end > 0), one_side, value(end) - value(u))

    out = expectation(torch.zeros_like, mean * rate, var * (rate * rate), deviation=deviation)
    return Moments(plain + out.mean, out.var)


def _alphas(draw: Draw) -> Iterable[Sample]:
    yield from one_of_each_shape(draw)
    yield Sample(draw.moments(3, 4), 0.7)


_BY_QUADRATURE = {"kind": Kind.ELEMENTWISE, "error": 1e-3}


@rule(F.elu, F.elu_, name="elu", fidelity=EXACT, samples=_alphas, pointwise=True, **_BY_QUADRATURE)
@of_elements
def elu(mean: Tensor, var: Tensor, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """E and Var by centred quadrature, split at the kink.

    Assumes: independent elements. Exact up to the quadrature's error.

    Source: Gauss-Legendre quadrature, see `howsure.moments.numerics.quadrature`.
    """
    return _exponential_unit(mean, var, F.elu(mean, alpha), 1.0, alpha, 1.0)


@rule(
    torch.ops.aten.elu.default,
    torch.ops.aten.elu_.default,
    name="elu (aten)",
    fidelity=EXACT,
    samples=lambda draw: [Sample(draw.moments(3, 4), 0.7, 1.3, 0.9), Sample(draw.moments(5))],
    pointwise=True,
    **_BY_QUADRATURE,
)
@of_elements
def elu_of_programs(
    mean: Tensor, var: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Moments:
    """As `elu`, with factors for the output and for the exponent."""
    plain = torch.ops.aten.elu.default(mean, alpha, scale, input_scale)
    return _exponential_unit(mean, var, plain, scale, scale * alpha, input_scale)


@pointwise("celu", first=F.celu, samples=_alphas, **_BY_QUADRATURE)
def celu(mean: Tensor, var: Tensor, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """As `elu`, for alpha (e^(x / alpha) - 1) below 0."""
    return _exponential_unit(mean, var, F.celu(mean, alpha), 1.0, alpha, 1 / alpha)


# torch's own constants, from Klambauer et al. 2017.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@pointwise("selu", first=F.selu, **_BY_QUADRATURE)
def selu(mean: Tensor, var: Tensor, inplace: bool = False) -> Moments:
    """As `elu`, with the self-normalising constants."""
    return _exponential_unit(mean, var, F.selu(mean), _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA, 1.0)
