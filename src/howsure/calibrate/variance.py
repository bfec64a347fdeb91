"""A factor on the variance, and with it a constant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import Calibrator, check_uncalibrated
from howsure.calibrate.held_out import HeldOut, align_outputs, mean_and_var
from howsure.line_search import log_minimum
from howsure.prediction import CONSTANT, Budget, Details, Prediction
from howsure.trees import TensorTree


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
        data = HeldOut.of(prediction, target).by_output(per_output)
        data.check_variances(
            "which no factor can correct; use `AffineVariance`, which also adds a constant."
        )
        data.check_errors()
        scale = (data.error.square() / data.var).mean(1)
        return cls(scale if per_output else scale[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with data and model variance times `scale`."""
        return rescaled(prediction, self.scale, torch.zeros_like(self.scale))


@dataclass(frozen=True, eq=False, repr=False)
class AffineVariance(Calibrator):
    """Variances become residual_var + scale * var, residual_var and scale not negative.

    `residual_var` stands for what the method cannot see, such as noisy targets; it is data
    variance. The two minimize the Gaussian NLL on held-out data. With r = residual_var / scale
    fixed, the best scale is mean(e**2 / (r + var)) in closed form, so a search over r alone
    remains; its two ends, a factor alone and a constant alone, are candidates of their own.

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
        data = HeldOut.of(prediction, target, least=3).by_output(per_output)
        data.check_errors()
        exact = int(((data.error == 0) & (data.var == 0)).sum())
        if exact:
            raise ValueError(
                f"{exact} held-out points have error 0 and variance 0, where the likelihood has no "
                "bound; leave those out."
            )
        squared, var, unit = data.error.square(), data.var, data.var.mean(1)
        is_blind = unit == 0
        unit = torch.where(is_blind, 1.0, unit)

        def best_scale(constant: Tensor) -> Tensor:  # (k,)
            return (squared / (constant[:, None] + var)).mean(1)

        def cost(constant: Tensor) -> Tensor:  # (k,)
            return torch.log(constant[:, None] + var).mean(1) + torch.log(best_scale(constant))

        r = unit * log_minimum(lambda ratio: cost(ratio * unit), 1e-8, 1e8, per_decade=2)
        zero, mean_square = torch.zeros_like(unit), squared.mean(1)
        # A factor alone, both, and a constant alone, which wins only where it is better.
        costs = torch.stack([cost(zero) - 1e-12, cost(r), torch.log(mean_square) + 1e-12])
        scales = torch.stack([best_scale(zero), best_scale(r), zero])
        constants = torch.stack([zero, r * best_scale(r), mean_square])
        # A likelihood that a variance of 0 leaves undefined is never the best.
        best = torch.where(costs.isfinite(), costs, torch.inf).argmin(0, keepdim=True)
        scale, residual_var = (table.gather(0, best)[0] for table in (scales, constants))
        # Without any variance to learn from, the constant explains the errors and the factor is 1.
        scale = torch.where(is_blind, 1.0, scale)
        residual_var = torch.where(is_blind, mean_square, residual_var)
        return cls(scale, residual_var) if per_output else cls(scale[0], residual_var[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """Both variances times `scale`, and `residual_var` more data variance."""
        return rescaled(prediction, self.scale, self.residual_var)


def rescaled(prediction: Prediction, scale: Tensor, residual_var: Tensor) -> Prediction:
    """Both variances times `scale`, and `residual_var` more data variance.

    The sum of data and model variance is then scale * total + residual_var. Covariance, budget and
    standard error follow; correlations between outputs stay, apart from what `residual_var`
    dilutes.

    Args:
        prediction: What to correct.
        scale: A number, `()`, or one for each output at dim 1, `(outputs,)`.
        residual_var: Likewise.
    """
    check_uncalibrated(prediction)
    mean, var = mean_and_var(prediction)
    factor, constant = (align_outputs(mean, value) for value in (scale, residual_var))

    def mapped(tree: object, factor: Tensor, constant: Tensor | float = 0.0) -> object:
        values = TensorTree(tree)
        return values.unflatten([tensor * factor + constant for tensor in values.tensors])

    std_error = prediction.std_error
    if std_error is not None:
        # d std' = scale * std / std' * d std, since std'**2 = scale * std**2 + constant.
        std, new_std = var.sqrt(), (factor * var + constant).sqrt()
        std_error = mapped(
            std_error, torch.where(new_std > 0, factor * std / new_std, factor.sqrt())
        )
    # Covariance and budget have one number for each output, in a row.
    flat_factor, flat_constant = (
        value.expand(mean.shape[1:]).reshape(-1) for value in (factor, constant)
    )
    covariance, sources = prediction.covariance, prediction.sources
    if covariance is not None:
        root = flat_factor.sqrt()
        covariance = covariance * root[:, None] * root + torch.diag(flat_constant)
    budget = None if sources is None else _rescaled_budget(sources, flat_factor, flat_constant)
    return replace(
        prediction,
        data_var=mapped(prediction.data_var, factor, constant),
        model_var=mapped(prediction.model_var, factor),
        std_error=std_error,
        details=Details(covariance, prediction.linear_share, budget),
    )


def _rescaled_budget(budget: Budget, factor: Tensor, constant: Tensor) -> Budget:
    """Every source times `factor`; `constant` is a source, or adds to the one there is."""
    names, kinds, variances = budget.names, budget.kinds, budget.variances * factor
    if bool((constant > 0).any()):
        if CONSTANT not in names:
            names, kinds = (*names, CONSTANT), (*kinds, "constant")
            variances = torch.cat([variances, torch.zeros_like(variances[:1])])
        variances[names.index(CONSTANT)] += constant
    elements = {
        name: variance * factor.reshape(-1, *[1] * (variance.dim() - 2))
        for name, variance in budget.elements.items()
    }
    return Budget(names, kinds, variances, elements)
