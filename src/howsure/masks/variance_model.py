"""The variance of a prediction from what the sensor, the masks and the held-out errors say.

    v_in = residual_var + noise_factor data_var + mask_var m        on inputs like the known ones
    v    = v_in + squared_error ([m / m_q]^exponent - 1)_+          growth: further away
    var  = (v^-4 + V^-4)^(-1/4),  V = Var y + (f - mean y)^2        cap

m is what the masks' posterior leaves open, m_q its quantile on held-out inputs. The linear model
behind m says too little far away, hence the growth; and nobody is less sure than someone who knows
the targets alone, hence the cap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.masks.posterior import MaskPosterior

# The quantile of the held-out inputs from which the variance grows, and that is a novelty of 1.
KNOWN = 0.75
EXPONENT = 1.5
# Sharpness of the cap: both sides count within some 20 % of each other.
_CAP = 4
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Parts:
    """A variance by where it comes from, all (rows, outputs).

    Attributes:
        residual: What no part explains, on known inputs.
        data: From the sensor's noise.
        masks: From the posterior of the masks.
        growth: From being unlike the known inputs.
        novelty: m / m_q.
        joint: The same for all outputs together, (rows,).
    """

    residual: Tensor
    data: Tensor
    masks: Tensor
    growth: Tensor
    novelty: Tensor
    joint: Tensor


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
        quantiles: Novelty of the held-out inputs at `LEVELS`, (levels, outputs).
        joint_quantiles: The same of the joint novelty, (levels,).
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

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Joint novelty of the held-out inputs at `LEVELS`; `None` without a posterior."""
        return None if self.posterior is None else self.joint_quantiles

    def parts(self, mean: Tensor, data_var: Tensor, m: Tensor | None) -> Parts:
        """The variance of predictions by part, capped; all (rows, outputs), in double precision."""
        data = self.noise_factor * data_var.double()
        residual = self.residual_var.expand_as(data)
        m = torch.zeros_like(data) if m is None else m
        novelty = m / torch.where(self.known > 0, self.known, 1.0)
        masks = self.mask_var * m
        growth = self.squared_error * (novelty.pow(self.exponent) - 1).clamp(min=0)
        factor = self._capped(residual + data + masks + growth, mean.double())
        return Parts(
            factor * residual,
            factor * data,
            factor * masks,
            factor * growth,
            novelty,
            novelty.mean(1) / self.joint_known,
        )

    def _capped(self, total: Tensor, mean: Tensor) -> Tensor:
        """What is left of a variance, as a share of it."""
        most = self.spread + (mean - self.centre).square()
        return (1 + (total / most.clamp(min=torch.finfo(total.dtype).tiny)) ** _CAP) ** (-1 / _CAP)

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, to be saved."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        posterior = own.pop("posterior")
        if posterior is not None:
            own["posterior"] = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
        return own

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VarianceModel:
        """What `state` gave."""
        own = dict(state)
        posterior = own.pop("posterior", None)
        known = None if posterior is None else MaskPosterior(**posterior)
        return cls(posterior=known, **own)
