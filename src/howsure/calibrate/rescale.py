"""A prediction with variance scale * var + tau, consistent in all its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.budget import CONSTANT, Budget
from howsure.calibrate.held_out import check_new, one_tensor
from howsure.prediction import Prediction
from howsure.structure import Parts

_LEFT_OUT = (
    "Covariance and budget are left out: they are of some outputs only, and the calibrator has a "
    "scale for each output."
)


def rescaled(prediction: Prediction, scale: Tensor, tau: Tensor) -> Prediction:
    """Both variances times `scale`, and `tau` more data variance.

    The sum of data and model variance is then scale * total + tau. Covariance and budget follow;
    correlations between outputs stay, apart from what `tau` dilutes.

    Args:
        prediction: What to correct.
        scale: A number, `()`, or one for each output at dim 1, `(outputs,)`.
        tau: Likewise.
    """
    check_new(prediction)
    mean = one_tensor(prediction.mean, "mean")
    factor, extra = (aligned(mean, value) for value in (scale, tau))
    changed = replace(
        prediction,
        data_var=_mapped(prediction.data_var, factor, extra),
        model_var=_mapped(prediction.model_var, factor, torch.zeros_like(extra)),
    )
    if prediction.covariance is None and prediction.sources is None:
        return changed
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


def _mapped(tree: Any, factor: Tensor, extra: Tensor) -> Any:
    parts = Parts(tree)
    return parts.filled([tensor * factor + extra for tensor in parts.tensors])


def _with_extras(prediction: Prediction, factor: Tensor, extra: Tensor) -> Prediction:
    """Covariance and budget rescaled; `factor` and `extra` are one number per flat output."""
    covariance, sources = prediction.covariance, prediction.sources
    known = covariance if covariance is not None else sources.variances if sources else None
    assert known is not None
    count = known.shape[-1]
    if count != len(factor):
        if not bool((factor == factor[0]).all() and (extra == extra[0]).all()):
            notes = (*prediction.notes, _LEFT_OUT)
            return replace(prediction, covariance=None, sources=None, notes=notes)
        factor, extra = factor[:1].expand(count), extra[:1].expand(count)
    root = factor.sqrt()
    return replace(
        prediction,
        covariance=None
        if covariance is None
        else covariance * root[:, None] * root + torch.diag(extra),
        sources=None if sources is None else _budget(sources, factor, extra),
    )


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
