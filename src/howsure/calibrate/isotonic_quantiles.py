"""Quantiles whose levels are those seen on held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import Calibrator
from howsure.calibrate.calibrated import CalibratedPrediction, with_intervals
from howsure.calibrate.held_out import held_out, mean_and_var
from howsure.calibrate.rescale import aligned
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
        data = held_out(prediction, target).by_output(per_output)
        zeros = int((data.var == 0).sum())
        if zeros:
            raise ValueError(
                f"{zeros} of {data.var.numel()} held-out variances are 0, which have no quantiles; "
                "apply `AffineVariance` first, which adds a constant."
            )
        z = (data.error / data.var.sqrt()).sort(dim=1).values
        return cls(z if per_output else z[0])

    @property
    def count(self) -> int:
        """How many held-out scores there are, for each output."""
        return self.z.shape[-1]

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with recalibrated intervals; mean and variances stay."""
        return with_intervals(prediction, self)

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """The quantiles at (1 - level) / 2 and (1 + level) / 2."""
        if not 0 < level < 1:
            raise ValueError(f"The level of an interval must be between 0 and 1, not {level}.")
        tail = (1 - level) / 2
        return self.quantile(prediction, tail), self.quantile(prediction, 1 - tail)

    def quantile(self, prediction: Prediction, p: float) -> Any:
        """Below which a share p of targets lies: mean + std * (p-quantile of z)."""
        mean, var = mean_and_var(prediction)
        reach = aligned(mean, self._score(p))
        return TensorTree(prediction.mean).unflatten([mean + var.sqrt() * reach])

    def cdf(
        self,
        prediction: Prediction,
        value: Tensor,  # like the mean, or a number for all
    ) -> Tensor:
        """P(target <= value), never below 1 / (n + 1) or above n / (n + 1): what n points tell."""
        mean, var = mean_and_var(prediction)
        aligned(mean, self.z[..., 0])  # an error if the outputs do not fit
        z = (torch.as_tensor(value).to(mean) - mean) / var.sqrt()
        if self.z.dim() == 1:
            return self._level(self.z, z.double().cpu()).to(mean)
        rows = z.movedim(1, 0).double().cpu()
        level = self._level(self.z, rows.flatten(1)).reshape(rows.shape)
        return level.movedim(0, 1).to(mean)

    def _score(self, p: float) -> Tensor:
        """The p-quantile of z, `()` or `(outputs,)`."""
        # Rounding in 1 - (1 - level) / 2 must not refuse the outermost point.
        place = p * (self.count + 1) - 1
        if not -1e-9 <= place <= self.count - 1 + 1e-9:
            needed = _needed(p)
            raise ValueError(
                f"The quantile at level {p:g} needs at least {needed} held-out points; there are "
                f"{self.count}."
                if 0 < p < 1
                else f"The level of a quantile must be between 0 and 1, not {p}."
            )
        below = min(max(int(place), 0), self.count - 2)
        return torch.lerp(self.z[..., below], self.z[..., below + 1], place - below)

    def _level(self, knots: Tensor, z: Tensor) -> Tensor:
        """The level at z, linear between the knots of each row."""
        count = torch.searchsorted(knots, z.contiguous(), right=True)
        above = count.clamp(1, self.count - 1)
        lower, upper = (_taken(knots, index) for index in (above - 1, above))
        # Between two different knots the division is safe; beyond all of them there is a bound.
        share = (z - lower) / torch.where(upper > lower, upper - lower, torch.ones_like(upper))
        share = torch.where(count == self.count, 1.0, share.clamp(0, 1))
        return (above + share) / (self.count + 1)


def _needed(p: float) -> int:
    """The smallest n with 1 / (n + 1) <= min(p, 1 - p)."""
    tail = min(p, 1 - p)
    return max(2, -int(-(1 / tail - 1 - 1e-9) // 1)) if tail > 0 else 0


def _taken(knots: Tensor, index: Tensor) -> Tensor:
    return knots[index] if knots.dim() == 1 else knots.gather(1, index)
