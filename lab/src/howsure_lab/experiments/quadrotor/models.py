"""Everything that predicts the nominal model's error, with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from howsure.deploy.gate import Gate
from howsure.uncertain import Uncertain
from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.quadrotor.networks import ErrorNetwork
from howsure_lab.experiments.quadrotor.power_law import PowerLaw
from howsure_lab.experiments.quadrotor.readings import NOISE_STD, RATES, VELOCITY


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Errors as a linear function of velocity and rates (Faessler et al. 2018).

    Attributes:
        weights: (6, 6), to errors in the network's units.
        law: Its squared errors on held-out flights as a power of 1 + speed**2: what it leaves out
            is quadratic in speed.
    """

    weights: Tensor
    law: PowerLaw

    @staticmethod
    def fit(train: Pairs, held_out: Pairs) -> LinearModel:
        """Least squares on the training data."""
        weights = torch.linalg.lstsq(_motion(train.x).double(), train.y.double()).solution.float()
        residual = held_out.y - _motion(held_out.x) @ weights
        return LinearModel(weights, PowerLaw.fit(_squared_speed(held_out.x), residual.square()))

    def __call__(self, readings: Tensor) -> Tensor:  # (n, 14) -> (n, 6)
        """The errors at these readings."""
        return _motion(readings) @ self.weights

    def var(self, readings: Tensor) -> Tensor:  # (n, 14) -> (n, 6)
        """The variance of its errors at these readings."""
        return self.law(_squared_speed(readings))


def _motion(readings: Tensor) -> Tensor:  # (n, 6)
    return torch.cat([readings[:, VELOCITY], readings[:, RATES]], 1)


def _squared_speed(readings: Tensor) -> Tensor:  # (n,)
    return 1 + readings[:, VELOCITY].square().sum(1)


# How steeply trust ends around the gate's threshold, as a power of the std; chosen between 8 and 16
# on test flights of seeds 0 and 1, so only later seeds test it.
STEEPNESS = 16


@dataclass(frozen=True, eq=False)
class SureNetwork:
    """A network that says how sure it is, with what that meant on held-out flights.

    Attributes:
        sure: The network with its method.
        gate: The paper's: trusts up to five times the mean held-out uncertainty.
        law: Its squared errors on held-out flights, as a power of the mean of its predicted
            variances.
        novelty_gate: Trusts readings up to the novelty of 99 % of the held-out ones; only with a
            posterior.
    """

    sure: Uncertain
    gate: Gate
    law: PowerLaw
    novelty_gate: Gate | None = None

    def beyond(self, predicted: Tensor) -> Tensor:  # (n, 6) -> (n,)
        """The std as a multiple of the gate's threshold."""
        return self.gate.uncertainty(predicted) / self.gate.threshold

    def error_var(self, predicted: Tensor, beyond: Tensor) -> Tensor:  # (n, 6), (n,) -> (n, 6)
        """The variance to weight the network by: law * (1 + beyond**16).

        Held-out flights say nothing about what lies beyond them, and there the predicted variance
        rises with the errors but far less. So around the gate's threshold trust ends, softly.
        """
        return self.law(predicted.mean(1)) * (1 + beyond**STEEPNESS)[:, None]

    @staticmethod
    def fit(sure: Uncertain, held_out: Pairs, plain: nn.Module | None = None) -> SureNetwork:
        """Gate and law from held-out readings; with `plain`, its errors count instead."""
        found = sure.predict(held_out.batches(256), show_progress=False)
        var, mean = found.total_var, found.mean if plain is None else plain(held_out.x)
        squared = (mean - held_out.y).square()
        found_out = sure.setup.variance_model
        novelty_gate = None if found_out is None else Gate.on_novelty(found_out)
        return SureNetwork(sure, Gate.fit(var), PowerLaw.fit(var.mean(1), squared), novelty_gate)


@dataclass(frozen=True, eq=False)
class Models:
    """What the policies choose from.

    Attributes:
        network: The plain network.
        dropout: The same with the paper's uncertainty.
        posterior: The same with the default's: gradients, and what `fit` found about its masks.
        ensemble: Several networks that differ in their first weights, with their spread.
        linear: The fallback.
        scale: (6,), size of the errors in training: the networks' units.
    """

    network: ErrorNetwork
    dropout: SureNetwork
    posterior: SureNetwork
    ensemble: SureNetwork
    linear: LinearModel
    scale: Tensor


def with_dropout(network: nn.Module, *, samples: int, seed: int) -> Uncertain:
    """The paper's method; all samples run at once, for speed."""
    return Uncertain(
        network, _noise_var(), "sampled_adf", samples=samples, seed=seed, chunk=samples
    )


def with_posterior(network: nn.Module, *, points: int, seed: int) -> Uncertain:
    """The default method, to be fitted."""
    return Uncertain(network, _noise_var(), samples=points, seed=seed)


def _noise_var() -> Tensor:  # (14,)
    return torch.from_numpy(NOISE_STD).float().square()


def as_ensemble(networks: Sequence[nn.Module]) -> Uncertain:
    """The networks' mean and spread."""
    return Uncertain(nn.ModuleList(networks).eval(), method="ensemble")
