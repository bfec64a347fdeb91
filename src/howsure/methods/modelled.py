"""Variances with the model's own part: what the variance model makes of the sensor's and of z."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.estimators.variances import Variances, with_variances
from howsure.posterior.local_error import Nearby
from howsure.posterior.variance_model import VarianceModel, VarianceParts
from howsure.prediction import CONSTANT, Budget, Details


@dataclass(frozen=True, eq=False)
class Modelled:
    """Variances of all rows and outputs, and how new the inputs are.

    Attributes:
        variances: Data and model variance, with the budget.
        novelty: Of every output, (rows, outputs); `None` without a posterior.
        joint: Of all outputs together, (rows,).
    """

    variances: Variances
    novelty: Tensor | None = None
    joint: Tensor | None = None


def modelled(
    own: Variances,
    mean: Tensor,
    z: Tensor | None,
    model: VarianceModel,
    local: Nearby | None = None,
) -> Modelled:
    """The sensor's variances with the rest, as the variance model says.

    Args:
        own: Variances by the sensor's noise alone.
        mean: Predictions, (rows, outputs).
        z: Gradients with respect to the masks, (rows, outputs, masks).
        model: What `fit` has found.
        local: What training rows near each input say.
    """
    open_ = None if model.posterior is None or z is None else model.posterior.covariance(z)
    m = None if open_ is None else open_.diagonal(dim1=1, dim2=2)
    parts = model.parts(mean, own.data, m, local)
    residual = parts.residual + parts.local
    data, rest = residual + parts.data, parts.posterior + parts.growth
    std = (data + rest).sqrt()
    share = (parts.data / _positive(own.data)).sqrt() * parts.data.sqrt() / _positive(std)

    def details() -> Details:
        was = own.details()
        assert was.covariance is not None and was.budget is not None
        total = with_variances(was.covariance.double(), parts.data) + torch.diag_embed(residual)
        covariance = total if open_ is None else total + with_variances(open_, rest)
        budget = _budget(
            was.budget, own, parts, with_local=local is not None, with_masks=m is not None
        )
        return Details(covariance.to(own.data), was.linear_share, budget)

    variances = Variances(
        data.to(own.data, copy=True),  # which users may write into
        rest.to(own.data, copy=True),
        own.standard_error * share.to(own.standard_error),
        details,
    )
    if m is None:
        return Modelled(variances)
    return Modelled(variances, parts.novelty.to(own.data), parts.joint.to(own.data))


def _budget(
    was: Budget, own: Variances, parts: VarianceParts, *, with_local: bool, with_masks: bool
) -> Budget:
    """The sensors' shares in proportion, then residual, errors nearby, masks and growth."""
    factor = (parts.data / _positive(own.data)).to(own.data)
    names, kinds = [*was.names, CONSTANT], [*was.kinds, CONSTANT]
    rows = [*(factor * was.variances), parts.residual.to(own.data)]
    if with_local:
        names, kinds = [*names, "local error"], [*kinds, "local error"]
        rows += [parts.local.to(own.data)]
    if with_masks:
        names, kinds = [*names, "masks", "novelty"], [*kinds, "masks", "novelty"]
        rows += [parts.posterior.to(own.data), parts.growth.to(own.data)]
    maps = {
        name: each * factor.reshape(*factor.shape, *(1,) * (each.dim() - 2))
        for name, each in was.elements.items()
    }
    return Budget(tuple(names), tuple(kinds), torch.stack(rows), maps)


def _positive(each: Tensor) -> Tensor:
    """With 1 in place of 0, where nothing is divided but 0."""
    return torch.where(each > 0, each, 1.0)
