"""A factor on the variance, and with it a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import Calibrator
from howsure.calibrate.held_out import HeldOut, held_out
from howsure.calibrate.line_search import log_minimum
from howsure.calibrate.rescale import rescaled
from howsure.prediction import Prediction


@dataclass(frozen=True, eq=False, repr=False)
class VarianceScale(Calibrator):
    """Variances times `scale`; right when they are wrong by a common factor.

    scale = mean((target - mean)**2 / var) is where d/ds of the Gaussian NLL is 0, so no other
    factor has a smaller NLL on the held-out data (Laves et al. 2021, for the std).

    Attributes:
        scale: The factor, `()`, or one for each output at dim 1, `(outputs,)`.
    """

    kind: ClassVar[str] = "scale"
    scale: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> VarianceScale:
        """The factor for held-out data; one for each output if `per_output`."""
        data = held_out(prediction, target).by_output(per_output)
        zeros = int((data.var == 0).sum())
        if zeros:
            raise ValueError(
                f"{zeros} of {data.var.numel()} held-out variances are 0, which no factor can "
                "correct; use `AffineVariance`, which also adds a constant."
            )
        scale = (data.error.square() / data.var).mean(1)
        if bool((scale == 0).any()):
            raise ValueError("All held-out errors of an output are 0; are the targets predictions?")
        return cls(scale if per_output else scale[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with data and model variance times `scale`."""
        return rescaled(prediction, self.scale, torch.zeros_like(self.scale))


@dataclass(frozen=True, eq=False, repr=False)
class AffineVariance(Calibrator):
    """Variances become residual_var + scale * var, residual_var and scale not negative.

    `residual_var` stands for what the method cannot see, such as noisy targets; it is data
    variance. The two minimise the Gaussian NLL on held-out data. With r = residual_var / scale
    fixed, the best scale is
    mean(e**2 / (r + var)) in closed form, so a search over r alone remains.

    Attributes:
        scale: The factor, `()`, or one for each output at dim 1, `(outputs,)`.
        residual_var: The constant variance, likewise.
    """

    kind: ClassVar[str] = "affine"
    scale: Tensor
    residual_var: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> AffineVariance:
        """Factor and constant for held-out data; a pair for each output if `per_output`."""
        data = held_out(prediction, target, least=3).by_output(per_output)
        _check(data)
        scale, residual_var = _fitted(data)
        return cls(scale, residual_var) if per_output else cls(scale[0], residual_var[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """Both variances times `scale`, and `residual_var` more data variance."""
        return rescaled(prediction, self.scale, self.residual_var)


def _check(data: HeldOut) -> None:
    if bool((data.error == 0).all(1).any()):
        raise ValueError("All held-out errors of an output are 0; are the targets predictions?")
    exact = int(((data.error == 0) & (data.var == 0)).sum())
    if exact:
        raise ValueError(
            f"{exact} held-out points have error 0 and variance 0, where the likelihood has no "
            "bound; leave those out."
        )


def _fitted(data: HeldOut) -> tuple[Tensor, Tensor]:
    """Scale and residual variance of every row, (k,)."""
    squared, unit = data.error.square(), data.var.mean(1)
    # Where all variances are 0 any unit will do: the constant alone explains the errors.
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    relative = data.var / unit[:, None]

    def best_scale(ratio: Tensor) -> Tensor:
        return (squared / (ratio[:, None] + relative)).mean(1)

    def cost(ratio: Tensor) -> Tensor:
        return torch.log(ratio[:, None] + relative).mean(1) + torch.log(best_scale(ratio))

    ratio = log_minimum(cost, 1e-8, 1e8, per_decade=2)
    ends = torch.stack([_or_infinite(cost(torch.zeros(1, dtype=torch.float64))), cost(ratio)])
    scale = best_scale(ratio) / unit
    residual_var = ratio * unit * scale
    # The two ends of the search are corners: a factor alone, a constant alone.
    alone = ends[0] <= ends[1] + 1e-12
    scale = torch.where(alone, (squared / data.var).mean(1), scale)
    residual_var = torch.where(alone, torch.zeros_like(residual_var), residual_var)
    constant = torch.log(squared.mean(1)) <= ends.min(0).values - 1e-12
    scale = torch.where(constant, 0.0, scale)
    residual_var = torch.where(constant, squared.mean(1), residual_var)
    # Without any variance to learn from, the factor stays 1.
    blind = (data.var == 0).all(1)
    return torch.where(blind, 1.0, scale), torch.where(blind, squared.mean(1), residual_var)


def _or_infinite(value: Tensor) -> Tensor:
    """A likelihood that a variance of 0 leaves undefined is never the best."""
    return torch.where(torch.isfinite(value), value, torch.inf)
