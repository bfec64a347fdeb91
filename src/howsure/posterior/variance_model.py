"""The variance of a prediction from sensor noise, the posterior and the held-out errors.

    v_in = residual_var + noise_factor data_var + mask_var m + local_weight local
    v    = v_in + squared_error (n^exponent - 1)_+                  growth: further away
    n    = m / m_q,  or  sqrt(m / m_q  d / d_q)  where training data were given
    var  = (v^-4 + V^-4)^(-1/4),  V = Var y + (f - mean y)^2        cap

v_in is for inputs like the known ones. m is the predictive variance of the posterior over
multipliers, m_q its quantile on held-out inputs; local is the error near an input, where labelled
training data were given, and d the squared distance of the nearest training sample in the
penultimate layer, with d_q as for m. The linear model behind m underestimates far away, hence the
growth; and the variance is capped at the marginal variance of the targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.posterior.laplace import Posterior, one_for_zero
from howsure.posterior.local_error import LocalError, Nearby

# The quantile of the held-out inputs from which the variance grows, and that is a novelty of 1.
KNOWN = 0.75
EXPONENT = 1.5
# Sharpness of the cap: both sides count within some 20 % of each other.
_CAP = 4
# In place of the name of a last layer: multipliers at all layers, along some directions.
ALL_LAYERS = "*"
# Quantiles of the held-out novelty that are kept, in equal steps from the smallest to the largest.
QUANTILES = 101
# Quantile levels that a fit reports.
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class VarianceParts:
    """A variance by where it comes from, all (batch, outputs).

    Attributes:
        residual: The part that nothing explains, on known inputs.
        local: From the errors of training data nearby.
        data: From the noise of the sensor.
        posterior: From the posterior over multipliers.
        growth: From being unlike the known inputs.
        novelty: m / m_q.
        joint: The novelty of all outputs together, (batch,).
    """

    residual: Tensor
    local: Tensor
    data: Tensor
    posterior: Tensor
    growth: Tensor
    novelty: Tensor
    joint: Tensor

    @property
    def total(self) -> Tensor:
        """The variance itself."""
        return self.residual + self.local + self.data + self.posterior + self.growth


@dataclass(frozen=True, eq=False)
class VarianceModel:
    """The result of `fit`, saved under the names of its fields; tensors are (outputs,) unless said.

    Attributes:
        posterior: The posterior over multipliers; `None` if the model part was left out.
        residual_var: Variance that nothing explains.
        noise_factor: Factor on the variance of the sensor.
        mask_var: Prior variance of a multiplier: variance per unit of m.
        known: The held-out quantile of m that counts as known.
        joint_known: Likewise of the mean of m / known over the outputs.
        squared_error: Mean squared error on held-out data.
        exponent: How fast the variance grows with the novelty.
        centre: Mean of the held-out targets.
        spread: Their variance.
        quantiles: Of the held-out inputs' novelty in equal steps, (`QUANTILES`, outputs).
        joint_quantiles: Of their joint novelty, (`QUANTILES`,).
        head: Of dense outputs: the last layer, if the multipliers are those of its input channels,
            or `ALL_LAYERS`. The batch is then one of pixels, and outputs are the channels of the
            output.
        local_error: Training data with their errors; `None` if there were none.
        local_weight: Variance per unit of the error near an input; `None` likewise.
        known_distance: The held-out quantile of the squared distance to the nearest training
            sample; `None` likewise, and where samples repeat so often that it is 0.
    """

    posterior: Posterior | None
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
        self, mean: Tensor, data_var: Tensor, m: Tensor | None, nearby: Nearby | None = None
    ) -> VarianceParts:
        """The capped variance of predictions by part, in double precision.

        Args:
            mean: The predictions, (batch, outputs), as all of these.
            data_var: Their variance from the noise of the sensor.
            m: Their predictive variance from the posterior, if there is one.
            nearby: The training samples near the inputs, if there are any.
        """
        data = self.noise_factor * data_var.double()
        residual = self.residual_var.expand_as(data)
        m = torch.zeros_like(data) if m is None else m
        posterior = self.mask_var * m
        local = torch.zeros_like(data)
        if nearby is not None and self.local_weight is not None:
            local = self.local_weight * nearby.error

        novelty = distance = m / one_for_zero(self.known)
        if nearby is not None and self.known_distance is not None:
            # Neither alone is enough: gradients can be alike where no training sample is near.
            distance = (novelty * nearby.squared_distance / self.known_distance).sqrt()
        growth = self.squared_error * (distance.pow(self.exponent) - 1).clamp(min=0)

        total = residual + local + data + posterior + growth
        most = self.spread + (mean.double() - self.centre).square()
        ratio = total / most.clamp(min=torch.finfo(total.dtype).tiny)
        share = (1 + ratio**_CAP) ** (-1 / _CAP)
        return VarianceParts(
            residual=share * residual,
            local=share * local,
            data=share * data,
            posterior=share * posterior,
            growth=share * growth,
            novelty=novelty,
            joint=novelty.mean(1) / self.joint_known,
        )

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, to be saved."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _NESTED:
            value = state[name]
            if value is not None:
                state[name] = {f.name: getattr(value, f.name) for f in fields(value)}
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VarianceModel:
        """The inverse of `state`."""
        state = {"posterior": None, **state}
        for name, kind in _NESTED.items():
            if state.get(name) is not None:
                state[name] = kind(**state[name])
        return cls(**state)


# Fields that have fields.
_NESTED = {"posterior": Posterior, "local_error": LocalError}


def quantiles_of(novelty: Tensor) -> Tensor:  # (inputs, ...) -> (`QUANTILES`, ...)
    """The quantiles of the novelty of held-out inputs, which new inputs are compared with."""
    levels = torch.linspace(0, 1, QUANTILES, dtype=novelty.dtype, device=novelty.device)
    return novelty.quantile(levels, 0)


def quantile_at(quantiles: Tensor, level: float) -> float:
    """The novelty that this share of the held-out inputs does not exceed."""
    position = level * (len(quantiles) - 1)
    low, high = quantiles[[math.floor(position), math.ceil(position)]].tolist()
    return low + (position - math.floor(position)) * (high - low)


def share_below(quantiles: Tensor, novelty: Tensor) -> Tensor:
    """The share of the held-out inputs that are less novel, in steps of the quantiles."""
    quantiles = quantiles.to(novelty.device)
    novelty = novelty.to(quantiles.dtype).contiguous()
    low, high = (torch.searchsorted(quantiles, novelty, right=right) for right in (False, True))
    return (low + high) / (2 * len(quantiles))
