"""A prediction with variance scale * var + residual_var, consistent in all its parts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from howsure.calibrate.held_out import check_new, one_tensor
from howsure.prediction import CONSTANT, Budget, Details, Prediction
from howsure.trees import TensorTree


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
    check_new(prediction)
    mean = one_tensor(prediction.mean, "mean")
    factor, extra = (aligned(mean, value) for value in (scale, residual_var))
    changed = replace(
        prediction,
        data_var=_mapped(prediction.data_var, factor, extra),
        model_var=_mapped(prediction.model_var, factor, torch.zeros_like(extra)),
    )
    changed = replace(changed, std_error=_std_error(prediction, changed, factor))
    flat = [value.expand(mean.shape[1:]).reshape(-1) for value in (factor, extra)]
    return _with_extras(changed, *flat)


def aligned(mean: Tensor, value: Tensor) -> Tensor:
    """A value per output in a shape that goes with (batch, outputs, ...)."""
    value = value.to(mean)
    if value.dim() == 0:
        return value
    if mean.dim() < 2 or mean.shape[1] != len(value):
        raise ValueError(
            f"The calibrator was fitted for {len(value)} outputs; this prediction has shape "
            f"{tuple(mean.shape)}."
        )
    return value.reshape(-1, *[1] * (mean.dim() - 2))


def _mapped(tree: object, factor: Tensor, extra: Tensor) -> object:
    parts = TensorTree(tree)
    return parts.unflatten([tensor * factor + extra for tensor in parts.tensors])


def _std_error(before: Prediction, after: Prediction, factor: Tensor) -> object:
    """d std' = scale * std / std' * d std, since std'**2 = scale * std**2 + constant."""
    if before.std_error is None:
        return None
    stds = [one_tensor(each.std, "std") for each in (before, after)]
    grown = torch.where(stds[1] > 0, factor * stds[0] / stds[1], factor.sqrt())
    parts = TensorTree(before.std_error)
    return parts.unflatten([error * grown for error in parts.tensors])


def _with_extras(prediction: Prediction, factor: Tensor, extra: Tensor) -> Prediction:
    """Covariance and budget rescaled; `factor` and `extra` are one number per flat output."""
    covariance, sources, root = prediction.covariance, prediction.sources, factor.sqrt()
    if covariance is not None:
        covariance = covariance * root[:, None] * root + torch.diag(extra)
    budget = None if sources is None else _budget(sources, factor, extra)
    return replace(prediction, details=Details(covariance, prediction.linear_share, budget))


def _budget(budget: Budget, factor: Tensor, extra: Tensor) -> Budget:
    """Every source times `factor`; `extra` is a source of its own, or adds to the constant one."""
    names, kinds, variances = budget.names, budget.kinds, budget.variances * factor
    if bool((extra > 0).any()):
        if CONSTANT not in names:
            names, kinds = (*names, CONSTANT), (*kinds, "constant")
            variances = torch.cat([variances, torch.zeros_like(variances[:1])])
        variances[names.index(CONSTANT)] += extra
    elements = {
        name: each * factor.reshape(-1, *[1] * (each.dim() - 2))
        for name, each in budget.elements.items()
    }
    return Budget(names, kinds, variances, elements)
