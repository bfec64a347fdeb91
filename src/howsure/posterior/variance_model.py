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

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.posterior.cross_fit import CrossFit
from howsure.posterior.distances import Distances, InputRange
from howsure.posterior.laplace import Posterior, one_for_zero
from howsure.posterior.local_error import Kernel, LocalError
from howsure.posterior.novelty import KNOWN, quantiles_of
from howsure.posterior.scores import Known, Scores

# The quantile of m on held-out inputs below which it does not fall.
FLOOR = 0.05
EXPONENT = 1.5
# Far away numbers overflow; the cap has long been reached.
_FARTHEST = 1e6
# Sharpness of the cap: both sides count within some 20 % of each other.
_CAP = 4
# The weights of the terms of v_in in their order: what nothing explains; a factor on the sensor's
# variance; variance per unit of m and of L; the share of the squared distance of a prediction from
# the mean target; variance per unit of the error near an input and of G.
TERMS = (
    "residual_var",
    "noise_factor",
    "mask_var",
    "layer_var",
    "deviation_var",
    "local_weight",
    "kernel_var",
)


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
        weights: Those of the terms of v_in, (outputs, 7): see `TERMS`.
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
        dense: Whether the batch is one of pixels, and outputs are the channels of the output.
        local_error: Training data with their errors; `None` if there were none.
        known_nearest: The held-out quantile of the squared distance to the nearest training
            sample; `None` without, and where samples repeat so often that it is 0.
        kernel: Known inputs of a table; `None` if there are none.
        note: Why there is no posterior; empty if there is one, or none was wanted.
    """

    posterior: Posterior | None
    distances: Distances | None
    input_range: InputRange | None
    weights: Tensor
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
    dense: bool = False
    local_error: LocalError | None = None
    known_nearest: float | None = None
    kernel: Kernel | None = None
    note: str = ""

    @property
    def inputs_known(self) -> Known:
        """The known inputs, which others are scored by."""
        return Known(
            None if self.posterior is None else CrossFit(self.posterior),
            None if self.distances is None else CrossFit(self.distances),
            self.input_range,
            self.kernel,
            self.local_error,
        )

    @property
    def has_novelty(self) -> bool:
        """Whether inputs are compared with known ones."""
        return self.posterior is not None or self.input_range is not None

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Of the held-out inputs' joint novelty; `None` if they are compared with nothing."""
        return self.joint_quantiles if self.has_novelty else None

    def weight(self, name: str) -> Tensor:
        """The weight of one of the `TERMS`."""
        return self.weights[:, TERMS.index(name)]

    def terms(self, scores: Scores) -> Tensor:
        """What v_in is a weighted sum of, (batch, outputs, 7), in the order of `TERMS`."""
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

    def ratios(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """n of m, (batch, outputs), of D and L, (batch, 2), and `far`, (batch,)."""
        of_m = torch.maximum(scores.m, self.floor) / one_for_zero(self.known)
        of_distances = scores.distances / one_for_zero(self.known_distances)
        relative = scores.distances / one_for_zero(self.farthest)
        far = torch.maximum(relative.amax(1), scores.beyond)
        most = _FARTHEST
        return of_m.clamp(max=most), of_distances.clamp(max=most), far.clamp(max=most)

    def grown(self, ratios: tuple[Tensor, Tensor, Tensor], nearest: Tensor) -> Tensor:
        """The growth of the variance by m and `far`, by D and by L, (batch, outputs, 3)."""
        of_m, of_distances, far = ratios
        if self.known_nearest is not None:
            # Neither alone is enough: gradients can be alike where no training sample is near.
            of_m = (of_m * nearest / self.known_nearest).sqrt()
        columns = torch.stack([of_m, *(n[:, None].expand_as(of_m) for n in of_distances.mT)], 2)
        growth = (columns.pow(self.exponent) - 1).clamp(min=0)
        beyond = (far.pow(self.exponent) - 1).clamp(min=0)[:, None, None]
        growth = torch.cat([growth[..., :1] + beyond, growth[..., 1:]], 2)
        return self.squared_error[:, None] * growth

    def novelty(self, ratios: tuple[Tensor, Tensor, Tensor]) -> Tensor:  # (batch, outputs)
        """The largest of the scores that count, relative to its quantile on held-out inputs."""
        of_m, of_distances, far = ratios
        counts = torch.where(self.growth > 0, 1.0, 0.0)  # (outputs, 2)
        largest = torch.maximum(of_m, (of_distances[:, None] * counts).amax(2))
        return torch.maximum(largest, far[:, None]) / self.novelty_scale

    def parts(self, scores: Scores) -> VarianceParts:
        """The capped variance of predictions by part, in double precision."""
        terms = self.terms(scores) * self.weights
        residual, data = terms[..., 0] + terms[..., 4], terms[..., 1]
        posterior = terms[..., 2] + terms[..., 3] + terms[..., 6]
        ratios = self.ratios(scores)
        grown = self.grown(ratios, scores.nearest)
        growth = grown[..., 0] + (grown[..., 1:] * self.growth).sum(2)
        others = residual + terms[..., 5] + posterior + growth
        total = others + data
        most = self.spread + (scores.mean - self.center).square()
        ratio = total / most.clamp(min=torch.finfo(total.dtype).tiny)
        capped = total * (1 + ratio**_CAP) ** (-1 / _CAP)
        share = (capped - data).clamp(min=0) / one_for_zero(others)
        novelty = self.novelty(ratios)
        return VarianceParts(
            residual=share * residual,
            local=share * terms[..., 5],
            data=data,
            posterior=share * posterior,
            growth=share * growth,
            novelty=novelty,
            joint=novelty.mean(1) / self.joint_known,
        )

    def with_joint(self, novelty: Tensor) -> VarianceModel:  # (inputs,)
        """With the scale and the quantiles of the mean novelty over all outputs of an input."""
        known = max(float(novelty.quantile(KNOWN)), torch.finfo(torch.float64).tiny)
        return replace(self, joint_known=known, joint_quantiles=quantiles_of(novelty) / known)
