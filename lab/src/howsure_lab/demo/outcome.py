"""What howsure says under one condition, beside what is true."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure import Gate, metrics
from howsure.metrics import rank_correlation
from howsure.prediction import Prediction
from howsure_lab.demo.conditions import Condition
from howsure_lab.experiments.pairs import Pairs

_DRAWS = 200


@dataclass(frozen=True, eq=False)
class Outcome:
    """Readings of a condition, their true angles, and the predictions; angles are in radians."""

    condition: Condition
    pairs: Pairs
    prediction: Prediction

    @property
    def name(self) -> str:
        """The condition's name."""
        return self.condition.name

    @property
    def mean(self) -> Tensor:
        """Predicted angles, (n,)."""
        return self.prediction.mean.flatten()

    @property
    def var(self) -> Tensor:
        """Their predicted variances, (n,)."""
        return self.prediction.total_var.flatten()

    @property
    def std(self) -> Tensor:
        """Their predicted standard deviations, (n,)."""
        return self.var.sqrt()

    @property
    def true(self) -> Tensor:
        """The driver's angles, (n,)."""
        return self.pairs.y.flatten()

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return float(metrics.rmse(self.mean, self.true))

    @property
    def mean_std(self) -> float:
        """The predicted std, averaged."""
        return float(self.std.mean())

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood, without 1/2 log 2 pi."""
        nu = self.prediction.degrees_of_freedom
        return float(metrics.nll(self.mean, self.var, self.true, degrees_of_freedom=nu))

    def nll_of_one_std(self, std: float) -> float:
        """The same if every prediction had this std."""
        return float(metrics.nll(self.mean, self.var.new_full(self.var.shape, std**2), self.true))

    @property
    def coverage(self) -> float:
        """Share of true angles inside the 95 % interval."""
        low, high = (end.flatten() for end in self.prediction.interval(0.95))
        return float(((low <= self.true) & (self.true <= high)).double().mean())

    def coverage_of_one_std(self, std: float) -> float:
        """The same if every prediction had this std."""
        var = torch.full_like(self.var, std**2)
        return float(metrics.coverage(self.mean, var, self.true, level=0.95))

    @property
    def sensor_share(self) -> float:
        """Share of the variance that comes from the camera's noise; the network has the rest."""
        return float(self.prediction.data_var.sum() / self.prediction.total_var.sum())

    @property
    def rank(self) -> float:
        """Rank correlation of predicted std and absolute error."""
        return float(rank_correlation(self.std, (self.mean - self.true).abs()))

    @property
    def novelties(self) -> Tensor:
        """How new each scene is, (n,): above 1 for a quarter of the held-out roads."""
        found = self.prediction.joint_novelty
        return torch.full_like(self.var, math.nan) if found is None else found

    @property
    def novelty(self) -> float:
        """The median novelty; NaN without a fit."""
        return float(self.novelties.median())

    def rejected(self, gate: Gate) -> float:
        """Share of the scenes that a gate on the novelty does not trust."""
        return float((~gate(self.novelties)).float().mean())

    @property
    def rank_if_right(self) -> float:
        """What the rank correlation would be, on average, if every std were exactly right.

        Errors are random: even then a scene with a large std may have a small error.
        """
        generator = torch.Generator().manual_seed(0)
        draws = torch.randn(_DRAWS, len(self.std), generator=generator).abs()
        return float(torch.stack([rank_correlation(self.std, d * self.std) for d in draws]).mean())

    def auroc_against(self, other: Outcome) -> float:
        """AUROC: how often a scene of this condition has a larger std than one of the other."""
        return float(metrics.out_of_distribution_auroc(other.std, self.std))

    @property
    def by_certainty(self) -> list[int]:
        """Positions of the scenes, the smallest predicted std first."""
        return self.var.argsort(stable=True).tolist()
