"""The variance of a prediction from sensor noise, the posterior, distances and held-out errors.

    v_in = residual_var + data_var + mask_var max(m, m_05) + layer_var L
           + deviation_var (f - mean y)^2 + local_weight local + kernel_var G
    v    = v_in + squared_error [ g(n_m) + sum_j growth_j g(n_j) + g(far) ]
    var  = (v^-4 + V^-4)^(-1/4),  V = Var y + (f - mean y)^2

with g(n) = (n^exponent - 1)_+. v_in is for inputs like the known ones, V is a cap.

m is the predictive variance of the posterior over multipliers, and at least its 5 % quantile on
held-out inputs: where units are dead, gradients vanish and m with them. L is the squared
Mahalanobis distance of the layers' inputs, D the squared cosine distance to the 6th known neighbor
before the last layer, and n = score / its 75 % quantile on held-out inputs. `far` is 1 at twice the
range of the known inputs, and at twice the largest L or D of a held-out input. local is the error
near an input and G the variance of a Gaussian process there, where training data were given. The
novelty is the largest of the scores that count. The sensor's variance itself is never capped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.posterior.distances import Distances, InputRange, LayerGaussian
from howsure.posterior.laplace import Posterior, one_for_zero
from howsure.posterior.local_error import Kernel, LocalError

# The quantile of the held-out inputs from which the variance grows, and that is a novelty of 1.
KNOWN = 0.75
# The quantile of m on held-out inputs below which it does not fall.
FLOOR = 0.05
EXPONENT = 1.5
# Far away numbers overflow; the cap has long been reached.
_FARTHEST = 1e6
# Sharpness of the cap: both sides count within some 20 % of each other.
_CAP = 4
# In place of the name of a last layer: multipliers at all layers, along some directions.
ALL_LAYERS = "*"
# Quantiles of the held-out novelty that are kept, in equal steps from the smallest to the largest.
QUANTILES = 101
# Quantile levels that a fit reports.
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Scores:
    """What the variance of some predictions is made of, in double precision.

    Attributes:
        mean: The predictions, (batch, outputs).
        data: Their variance from the noise of the sensor, (batch, outputs).
        m: Their predictive variance from the posterior, (batch, outputs); 0 without one.
        distances: Squared distances D to a neighbor and L over the layers, (batch, 2); 0 without.
        beyond: Squared distance from the middle of the known range, 1 at twice the range, (batch,).
        local: The error near each input, (batch, outputs); 0 without labelled training data.
        nearest: Squared distance of the nearest training sample, (batch, 1); 0 likewise.
        kernel: Variance of a Gaussian process between known inputs, (batch,); 0 without.
    """

    mean: Tensor
    data: Tensor
    m: Tensor
    distances: Tensor
    beyond: Tensor
    local: Tensor
    nearest: Tensor
    kernel: Tensor

    @classmethod
    def of(
        cls,
        mean: Tensor,
        data: Tensor,
        m: Tensor | None = None,
        distances: Tensor | None = None,
        beyond: Tensor | None = None,
        local: Tensor | None = None,
        nearest: Tensor | None = None,
        kernel: Tensor | None = None,
    ) -> Scores:
        """Those that there are, with 0 in place of the others."""
        mean = mean.double()

        def filled(scores: Tensor | None, *shape: int) -> Tensor:
            return mean.new_zeros(len(mean), *shape) if scores is None else scores.double()

        outputs = mean.shape[1]
        return cls(
            mean,
            data.double(),
            filled(m, outputs),
            filled(distances, 2),
            filled(beyond),
            filled(local, outputs),
            filled(nearest, 1),
            filled(kernel),
        )

    @staticmethod
    def joined(parts: Sequence[Scores]) -> Scores:
        """Those of several batches."""
        names = [field.name for field in fields(Scores)]
        return Scores(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class VarianceParts:
    """A variance by where it comes from, all (batch, outputs).

    Attributes:
        residual: The part that nothing explains, on known inputs.
        local: From the errors of training data nearby.
        data: From the noise of the sensor.
        posterior: From the posterior over multipliers and the distances, for inputs like the known.
        growth: From being unlike the known inputs.
        novelty: The largest of the scores that count; 1 at its quantile on held-out inputs.
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
        posterior: The posterior over multipliers; `None` where there is none.
        distances: The known inputs as seen from inside the network; `None` likewise.
        input_range: The range of the known inputs; `None` if the model part was left out.
        residual_var: Variance that nothing explains.
        noise_factor: Factor on the variance of the sensor; 1 unless asked for.
        mask_var: Prior variance of a multiplier: variance per unit of m.
        layer_var: Variance per unit of L.
        deviation_var: Share of the squared distance of a prediction from the mean target.
        floor: The least m that counts.
        known: The held-out quantile of m that counts as known.
        known_distances: Likewise of D and L, (2,).
        farthest: Twice the largest D and L of a held-out input, (2,).
        growth: How fast the variance grows with D and L, (outputs, 2).
        novelty_scale: The held-out quantile of the largest score, which is a novelty of 1.
        joint_known: Likewise of the mean over the outputs.
        squared_error: Mean squared error on held-out data.
        exponent: How fast the variance grows with the novelty.
        degrees_of_freedom: Of the Student-t that errors follow; infinity for a Gaussian.
        center: Mean of the held-out targets.
        spread: Their variance.
        quantiles: Of the held-out inputs' novelty in equal steps, (`QUANTILES`, outputs).
        joint_quantiles: Of their joint novelty, (`QUANTILES`,).
        head: Of dense outputs: the last layer, if the multipliers are those of its input channels,
            or `ALL_LAYERS`. The batch is then one of pixels, and outputs are the channels of the
            output.
        local_error: Training data with their errors; `None` if there were none.
        local_weight: Variance per unit of the error near an input.
        known_nearest: The held-out quantile of the squared distance to the nearest training
            sample; `None` without, and where samples repeat so often that it is 0.
        kernel: Known inputs of a table; `None` if there are none.
        kernel_var: Variance per unit of G.
        note: Why there is no posterior; empty if there is one, or none was wanted.
    """

    posterior: Posterior | None
    distances: Distances | None
    input_range: InputRange | None
    residual_var: Tensor
    noise_factor: Tensor
    mask_var: Tensor
    layer_var: Tensor
    deviation_var: Tensor
    floor: Tensor
    known: Tensor
    known_distances: Tensor
    farthest: Tensor
    growth: Tensor
    novelty_scale: Tensor
    joint_known: float
    squared_error: Tensor
    exponent: float
    degrees_of_freedom: float
    center: Tensor
    spread: Tensor
    quantiles: Tensor
    joint_quantiles: Tensor
    local_weight: Tensor
    kernel_var: Tensor
    head: str | None = None
    local_error: LocalError | None = None
    known_nearest: float | None = None
    kernel: Kernel | None = None
    note: str = ""

    @property
    def has_novelty(self) -> bool:
        """Whether inputs are compared with known ones."""
        return self.posterior is not None or self.input_range is not None

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Of the held-out inputs' joint novelty; `None` if they are compared with nothing."""
        return self.joint_quantiles if self.has_novelty else None

    def terms(self, scores: Scores) -> Tensor:
        """What v_in is a weighted sum of, (batch, outputs, 7), in the order of `weights`."""
        data = scores.data
        m = scores.m.clamp(max=1e2 * _FARTHEST * one_for_zero(self.known))
        columns = (
            torch.ones_like(data),
            data,
            torch.maximum(m, self.floor),
            scores.distances[:, 1:].clamp(max=1e2 * _FARTHEST).expand_as(data),
            (scores.mean - self.center).square(),
            scores.local,
            scores.kernel[:, None].expand_as(data),
        )
        return torch.stack(columns, 2)

    @property
    def weights(self) -> Tensor:
        """Those of the terms of v_in, (outputs, 7)."""
        weights = (
            self.residual_var,
            self.noise_factor,
            self.mask_var,
            self.layer_var,
            self.deviation_var,
            self.local_weight,
            self.kernel_var,
        )
        return torch.stack(weights, 1)

    def ratios(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """n of m, (batch, outputs), of D and L, (batch, 2), and `far`, (batch,)."""
        of_m = torch.maximum(scores.m, self.floor) / one_for_zero(self.known)
        of_distances = scores.distances / one_for_zero(self.known_distances)
        relative = scores.distances / one_for_zero(self.farthest)
        far = torch.maximum(relative.amax(1), scores.beyond)
        most = _FARTHEST
        return of_m.clamp(max=most), of_distances.clamp(max=most), far.clamp(max=most)

    def grown(self, scores: Scores) -> Tensor:
        """The growth of the variance by m and `far`, by D and by L, (batch, outputs, 3)."""
        of_m, of_distances, far = self.ratios(scores)
        if self.known_nearest is not None:
            # Neither alone is enough: gradients can be alike where no training sample is near.
            of_m = (of_m * scores.nearest / self.known_nearest).sqrt()
        ratios = torch.stack([of_m, *(n[:, None].expand_as(of_m) for n in of_distances.mT)], 2)
        growth = (ratios.pow(self.exponent) - 1).clamp(min=0)
        beyond = (far.pow(self.exponent) - 1).clamp(min=0)[:, None, None]
        growth = torch.cat([growth[..., :1] + beyond, growth[..., 1:]], 2)
        return self.squared_error[:, None] * growth

    def novelty(self, scores: Scores) -> Tensor:  # (batch, outputs)
        """The largest of the scores that count, relative to its quantile on held-out inputs."""
        of_m, of_distances, far = self.ratios(scores)
        counts = torch.where(self.growth > 0, 1.0, 0.0)  # (outputs, 2)
        largest = torch.maximum(of_m, (of_distances[:, None] * counts).amax(2))
        return torch.maximum(largest, far[:, None]) / self.novelty_scale

    def parts(self, scores: Scores) -> VarianceParts:
        """The capped variance of predictions by part, in double precision."""
        terms = self.terms(scores) * self.weights
        residual, data = terms[..., 0] + terms[..., 4], terms[..., 1]
        posterior = terms[..., 2] + terms[..., 3] + terms[..., 6]
        grown = self.grown(scores)
        growth = grown[..., 0] + (grown[..., 1:] * self.growth).sum(2)
        others = residual + terms[..., 5] + posterior + growth
        total = others + data
        most = self.spread + (scores.mean - self.center).square()
        ratio = total / most.clamp(min=torch.finfo(total.dtype).tiny)
        capped = total * (1 + ratio**_CAP) ** (-1 / _CAP)
        share = (capped - data).clamp(min=0) / one_for_zero(others)
        novelty = self.novelty(scores)
        return VarianceParts(
            residual=share * residual,
            local=share * terms[..., 5],
            data=data,
            posterior=share * posterior,
            growth=share * growth,
            novelty=novelty,
            joint=novelty.mean(1) / self.joint_known,
        )

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, to be saved."""
        state = _fields_of(self)
        for name in _NESTED:
            if state[name] is not None:
                state[name] = _fields_of(state[name])
        if self.distances is not None:
            state["distances"]["layers"] = [_fields_of(layer) for layer in self.distances.layers]
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VarianceModel:
        """The inverse of `state`; an error for that of another version."""
        names = {field.name for field in fields(cls)}
        if set(state) != names:
            raise ValueError(
                "These settings were fitted by another version of howsure; run `fit` again."
            )
        state = dict(state)
        for name, kind in _NESTED.items():
            if state[name] is not None:
                values = dict(state[name])
                if kind is Distances:
                    values["layers"] = tuple(LayerGaussian(**layer) for layer in values["layers"])
                state[name] = kind(**values)
        return cls(**state)


# Fields that have fields.
_NESTED = {
    "posterior": Posterior,
    "distances": Distances,
    "input_range": InputRange,
    "local_error": LocalError,
    "kernel": Kernel,
}


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


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
