"""The variance of a prediction from what the sensor, the masks and the held-out errors say.

    v_in = residual_var + noise_factor data_var + mask_var m + local_weight local
    v    = v_in + squared_error (n^exponent - 1)_+                  growth: further away
    n    = m / m_q,  or  sqrt(m / m_q  d / d_q)  where training rows were given
    var  = (v^-4 + V^-4)^(-1/4),  V = Var y + (f - mean y)^2        cap

v_in is for inputs like the known ones. m is what the masks' posterior leaves open, m_q its quantile
on held-out inputs; local is the error near an input, where labelled training rows were given, and d
the squared distance of the nearest of them in the penultimate layer, with d_q as for m. The
linear model behind m says too little far away, hence the growth; and nobody is less sure than
someone who knows the targets alone, hence the cap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.posterior.laplace import MaskPosterior
from howsure.posterior.local_error import LocalError, Nearby

# The quantile of the held-out inputs from which the variance grows, and that is a novelty of 1.
KNOWN = 0.75
EXPONENT = 1.5
# Sharpness of the cap: both sides count within some 20 % of each other.
_CAP = 4
# In place of the name of a last layer: masks at all layers, along some directions.
ALL_LAYERS = "*"


@dataclass(frozen=True, eq=False)
class Parts:
    """A variance by where it comes from, all (rows, outputs).

    Attributes:
        residual: What no part explains, on known inputs.
        local: From the errors of training rows nearby.
        data: From the sensor's noise.
        masks: From the posterior of the masks.
        growth: From being unlike the known inputs.
        novelty: m / m_q.
        joint: The same for all outputs together, (rows,).
    """

    residual: Tensor
    local: Tensor
    data: Tensor
    masks: Tensor
    growth: Tensor
    novelty: Tensor
    joint: Tensor

    @property
    def total(self) -> Tensor:
        """The variance itself."""
        return self.residual + self.local + self.data + self.masks + self.growth


@dataclass(frozen=True, eq=False)
class VarianceModel:
    """What `fit` found out; tensors are (outputs,) unless said.

    Attributes:
        posterior: The posterior over the masks; `None` if the model part was left out.
        residual_var: Variance that no part explains.
        noise_factor: Factor on the sensor's variance.
        mask_var: Variance per unit of m.
        known: The held-out quantile of m that counts as known.
        joint_known: Likewise of the mean of m / known over the outputs.
        squared_error: Mean squared error on held-out data.
        exponent: How fast the variance grows with the novelty.
        centre: Mean of the held-out targets.
        spread: Their variance.
        quantiles: Of the held-out inputs' novelty in equal steps, (`QUANTILES`, outputs).
        joint_quantiles: The same of the joint novelty, (`QUANTILES`,).
        head: Of dense outputs: the last layer, if the masks are those of its input channels, or
            `ALL_LAYERS`. Pixels are then the rows, and outputs the channels of the output.
        local_error: Training rows with their errors; `None` if there were none.
        local_weight: Variance per unit of the error near an input; `None` likewise.
        known_distance: The held-out quantile of the squared distance to the nearest training row;
            `None` likewise, and where rows repeat so often that it is 0.
    """

    posterior: MaskPosterior | None
    residual_var: Tensor
    noise_factor: Tensor
    mask_var: Tensor
    known: Tensor
    joint_known: float
    squared_error: Tensor
    exponent: float
    centre: Tensor
    spread: Tensor
    quantiles: Tensor
    joint_quantiles: Tensor
    head: str | None = None
    local_error: LocalError | None = None
    local_weight: Tensor | None = None
    known_distance: float | None = None

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Of the held-out inputs' joint novelty; `None` without a posterior."""
        return None if self.posterior is None else self.joint_quantiles

    def parts(
        self, mean: Tensor, data_var: Tensor, m: Tensor | None, local: Nearby | None = None
    ) -> Parts:
        """The variance of predictions by part, capped; all (rows, outputs), in double precision."""
        data = self.noise_factor * data_var.double()
        residual = self.residual_var.expand_as(data)
        m = torch.zeros_like(data) if m is None else m
        novelty = m / torch.where(self.known > 0, self.known, 1.0)
        masks = self.mask_var * m
        near = torch.zeros_like(data)
        if local is not None and self.local_weight is not None:
            near = self.local_weight * local.error
        growth = self._growth(novelty, local)
        factor = self._capped(residual + near + data + masks + growth, mean.double())
        return Parts(
            factor * residual,
            factor * near,
            factor * data,
            factor * masks,
            factor * growth,
            novelty,
            novelty.mean(1) / self.joint_known,
        )

    def _growth(self, novelty: Tensor, local: Nearby | None) -> Tensor:
        """What being unlike the known inputs adds."""
        if local is not None and self.known_distance is not None:
            # Neither alone is enough: gradients can be alike where no training row is near.
            novelty = (novelty * local.squared_distance / self.known_distance).sqrt()
        return self.squared_error * (novelty.pow(self.exponent) - 1).clamp(min=0)

    def _capped(self, total: Tensor, mean: Tensor) -> Tensor:
        """What is left of a variance, as a share of it."""
        most = self.spread + (mean - self.centre).square()
        return (1 + (total / most.clamp(min=torch.finfo(total.dtype).tiny)) ** _CAP) ** (-1 / _CAP)

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, to be saved."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in _NESTED:
            value = own[name]
            if value is not None:
                own[name] = {f.name: getattr(value, f.name) for f in fields(value)}
        return own

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VarianceModel:
        """What `state` gave."""
        own = {"posterior": None, **state}
        for name, kind in _NESTED.items():
            if own.get(name) is not None:
                own[name] = kind(**own[name])
        return cls(**own)


# Fields that have fields of their own.
_NESTED = {"posterior": MaskPosterior, "local_error": LocalError}
