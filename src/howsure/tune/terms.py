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
from howsure.methods.adjoint import split
from howsure.methods.analysis import Analysis, analyse
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.setup import Setup
from howsure.objectives import check_targets, gaussian
from howsure.prediction import Prediction
from howsure.sites import MASK


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
    x, plain = batch.x, batch.plain
    # Masks alone: the method has no sensor noise, or propagates it without correlations.
    masks_only = name in ("mc_dropout", "sampled_adf")
    seen = setup.with_(noise=None) if masks_only else setup
    found = analyse(seen.with_(outputs=None), x)
    mean, data = found.mean, split(found)[0]
    if batch.diagonal is not None:
        mean = mean + (batch.diagonal.mean - plain).flatten(1)
        data = batch.diagonal.data_var.flatten(1)
    elif setup.prediction == "network":
        mean = plain.flatten(1)
    error = _squared_error(mean.reshape(plain.shape), batch.target)
    odds, by_site = _by_site(setup, x, found)
    parts = (data, by_site, found.reading.model_remainder, odds)
    return Terms(error.flatten(1).double(), *(part.detach().double() for part in parts))


def _squared_error(mean: Tensor, target: Tensor) -> Tensor:
    prediction = Prediction(mean, torch.ones_like(mean), torch.zeros_like(mean))
    check_targets(prediction, target, "gaussian")
    return gaussian(prediction, target).error.detach()


def _by_site(setup: Setup, x: Any, found: Analysis) -> tuple[Tensor, Tensor]:
    """The odds of every site, (sites,), and its first-order variance at odds of 1."""
    sites = setup.sites(x)
    odds = odds_of(torch.tensor(setup.rates(sites), dtype=torch.float64))
    whole = {site.name: torch.zeros_like(found.reading.data_remainder) for site in sites}
    for name, kind, var in zip(found.names, found.kinds, found.reading.by_source, strict=True):
        if kind == MASK:
            whole[name] = whole[name] + var
    by_site = torch.stack([whole[site.name].double() for site in sites])
    return odds, by_site / torch.where(odds > 0, odds, 1.0)[:, None, None]


def odds_of(rate: Tensor) -> Tensor:
    """c = p / (1 - p), the variance of a mask with mean 1."""
    return rate / (1 - rate)


def rate_of(odds: Tensor) -> Tensor:
    """p = c / (1 + c)."""
    return odds / (1 + odds)
