"""Quantiles whose levels are those observed on held-out data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import CalibratedPrediction, Calibrator
from howsure.calibrate.held_out import HeldOut, align_outputs, mean_and_var
from howsure.prediction import Prediction
from howsure.trees import TensorTree


@dataclass(frozen=True, eq=False, repr=False)
class IsotonicQuantiles(Calibrator):
    """Recalibrated quantiles for errors that are biased, skewed or heavy-tailed.

    Kuleshov et al. (2018) map the level p of a prediction's quantile to the share of held-out
    targets below it, by isotonic regression. Those shares rise with p, so the regression is their
    empirical distribution itself; it is kept here as the sorted z = (target - mean) / std, which
    hold up where levels in float64 are all 0 or 1 because the std is ten times too small. The i-th
    of n gets level i / (n + 1), its expectation; between them levels are linear in z. Beyond them
    nothing is known: a level below 1 / (n + 1) is an error.

    Attributes:
        z: Sorted scores, `(n,)`, or for each output at dim 1, `(outputs, n)`.
    """

    kind: ClassVar[str] = "isotonic"
    z: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> IsotonicQuantiles:
        """The levels of held-out data, of all outputs together or of each if `per_output`."""
        data = HeldOut.of(prediction, target).by_output(per_output)
        data.check_variances(
            "which have no quantiles; apply `AffineVariance` first, which adds a constant."
        )
        z = (data.error / data.var.sqrt()).sort(dim=1).values.contiguous()
        return cls(z if per_output else z[0])

    @property
    def count(self) -> int:
        """How many held-out scores there are, for each output."""
        return self.z.shape[-1]

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with recalibrated intervals; mean and variances stay."""
        return CalibratedPrediction.of(prediction, self)

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """The quantiles at (1 - level) / 2 and (1 + level) / 2."""
        if not 0 < level < 1:
            raise ValueError(f"The level of an interval must be between 0 and 1, not {level}.")
        tail = (1 - level) / 2
        return self.quantile(prediction, tail), self.quantile(prediction, 1 - tail)

    def quantile(self, prediction: Prediction, p: float) -> Any:
        """Below which a share p of targets lies: mean + std * (p-quantile of z)."""
        if not 0 < p < 1:
            raise ValueError(f"The level of a quantile must be between 0 and 1, not {p}.")
        position = p * (self.count + 1) - 1
        # Rounding in 1 - (1 - level) / 2 must not refuse the outermost point.
        if not -1e-9 <= position <= self.count - 1 + 1e-9:
            needed = max(2, math.ceil(1 / min(p, 1 - p) - 1 - 1e-9))
            raise ValueError(
                f"The quantile at level {p:g} needs at least {needed} held-out points; there are "
                f"{self.count}."
            )
        below = min(max(int(position), 0), self.count - 2)
        z = torch.lerp(self.z[..., below], self.z[..., below + 1], position - below)
        mean, var = mean_and_var(prediction)
        value = mean + var.sqrt() * align_outputs(mean, z)
        return TensorTree(prediction.mean).unflatten([value])

    def cdf(
        self,
        prediction: Prediction,
        value: Tensor,  # like the mean, or a number for all
    ) -> Tensor:
        """P(target <= value), never below 1 / (n + 1) or above n / (n + 1): what n points tell."""
        mean, var = mean_and_var(prediction)
        align_outputs(mean, self.z[..., 0])  # an error if the outputs do not fit
        z = ((torch.as_tensor(value).to(mean) - mean) / var.sqrt()).double().cpu()
        # A row for each output with knots of its own, or one row for all.
        rows = z.movedim(1, 0) if self.z.dim() > 1 else z[None]
        flat, knots = rows.flatten(1).contiguous(), self.z.reshape(-1, self.count)
        not_above = torch.searchsorted(knots, flat, right=True)
        above = not_above.clamp(1, self.count - 1)
        lower, upper = knots.gather(1, above - 1), knots.gather(1, above)
        # Between two different knots the division is safe; beyond all of them there is a bound.
        share = (flat - lower) / torch.where(upper > lower, upper - lower, 1.0)
        share = torch.where(not_above == self.count, 1.0, share.clamp(0, 1))
        level = ((above + share) / (self.count + 1)).reshape(rows.shape).to(mean)
        return level.movedim(0, 1) if self.z.dim() > 1 else level[0]
