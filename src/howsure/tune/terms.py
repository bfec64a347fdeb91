"""The variance of held-out predictions as a function of the rates, from one pass over the data.

To first order the model variance is sum_l c_l M_l(x) over the dropout sites l, with the odds
c = p / (1 - p) and M_l independent of them; D(x) is the sensor's. What is beyond first order grows
with the square of the odds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.methods import METHODS
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.setup import Setup
from howsure.prediction import Prediction


@dataclass(frozen=True, eq=False)
class Terms:
    """Squared errors and the parts of the variance, all (inputs, outputs) in double precision.

    Attributes:
        error: Squared errors at the odds at which the pass was made.
        data: The sensor's variance D.
        by_site: First-order variance for odds of 1 at every dropout site, M: (sites, ...).
        beyond: The masks' variance beyond first order, at the odds of the pass.
        odds: The odds of the pass, (sites,).
    """

    error: Tensor
    data: Tensor
    by_site: Tensor
    beyond: Tensor
    odds: Tensor

    def model_var(self, odds: Tensor) -> Tensor:  # (sites,)
        """sum_l c_l M_l, and what is beyond it, which grows with its square."""
        first = torch.tensordot(odds, self.by_site, 1)
        there = torch.tensordot(self.odds, self.by_site, 1)
        growth = first / torch.where(there > 0, there, torch.ones_like(there))
        return first + self.beyond * growth.square()

    def total_var(self, odds: Tensor, noise_scale: Tensor | float = 1.0) -> Tensor:
        """The model's variance and the sensor's, without tau."""
        return self.model_var(odds) + noise_scale * self.data

    @staticmethod
    def joined(parts: list[Terms]) -> Terms:
        """All inputs of several batches."""
        error, data, beyond = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("error", "data", "beyond")
        )
        by_site = torch.cat([part.by_site for part in parts], 1)
        return Terms(error, data, by_site, beyond, parts[0].odds)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A batch of held-out data with what does not depend on the rates.

    Attributes:
        x: The inputs.
        target: Their targets.
        plain: The plain network's output.
        diagonal: Mean and variance of the propagated noise, for the method "sampled_adf".
    """

    x: Any
    target: Tensor
    plain: Tensor
    diagonal: Prediction | None

    @classmethod
    def of(cls, setup: Setup, name: str, x: Any, target: Tensor) -> HeldOut:
        """A batch, with one plain pass and for "sampled_adf" one of Gaussians."""
        with no_gradients():
            outputs = Pass(setup, x).plain()
        if len(outputs) != 1:
            raise ValueError(
                f"The model has {len(outputs)} outputs; wrap it so that it returns the one to "
                "fit on."
            )
        still = setup.with_(rate=None, tau=0.0)
        diagonal = METHODS["adf"](still, x) if name == "sampled_adf" else None
        return cls(x, target, outputs[0].clone(), diagonal)


def terms_of(setup: Setup, name: str, batch: HeldOut) -> Terms:
    """The terms of one batch, at the setup's rates."""
    raise NotImplementedError("There is no method that knows the variance of every dropout site.")


def odds_of(rate: Tensor) -> Tensor:
    """c = p / (1 - p), the variance of a mask with mean 1."""
    return rate / (1 - rate)


def rate_of(odds: Tensor) -> Tensor:
    """p = c / (1 + c)."""
    return odds / (1 + odds)
