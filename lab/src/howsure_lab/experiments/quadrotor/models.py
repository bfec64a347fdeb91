"""Everything that predicts the nominal model's error from readings, with how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from howsure.deploy.gate import Gate
from howsure.uncertain import Uncertain
from howsure_lab.experiments.quadrotor.physics import (
    Array,
    Vehicle,
    canonical,
    matrix,
    parts,
    unrotated,
)
from howsure_lab.experiments.training import Pairs

ATTITUDE, VELOCITY, RATES, THRUSTS = slice(0, 4), slice(4, 7), slice(7, 10), slice(10, 14)
COUNT = 14
# Standard deviations: of a quaternion's component, m/s, rad/s, N.
NOISE_STD = np.repeat([0.005, 0.05, 0.02, 0.02], [4, 3, 3, 4])


def read(vehicle: Vehicle, state: Array, generator: np.random.Generator) -> Array:  # (n, 14)
    """Attitude (with w >= 0), velocity in the body's frame, rates and thrusts, with noise."""
    exact = exact_reading(vehicle, state)
    return exact + NOISE_STD * generator.standard_normal(exact.shape)


def exact_reading(vehicle: Vehicle, state: Array) -> Array:  # (17, n) -> (n, 14)
    """What the sensors would read without noise."""
    now = parts(state)
    velocity = unrotated(matrix(now.attitude), now.velocity)
    thrusts = vehicle.thrust_factor * now.speeds**2
    return np.concatenate([canonical(now.attitude), velocity, now.rates, thrusts]).T


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """var_k = exp(offset_k) * u**power_k, with one sign u of trouble for all outputs."""

    offset: Tensor  # (outputs,)
    power: Tensor  # (outputs,), 0 or more

    def __call__(self, u: Tensor) -> Tensor:  # (n,) -> (n, outputs)
        """The variance of every output."""
        return torch.exp(self.offset + self.power * u.log()[:, None])

    @staticmethod
    def fit(u: Tensor, squared: Tensor) -> PowerLaw:  # (n,), (n, outputs)
        """The law under which Gaussian errors with these squares are most likely.

        The NLL 1/2 (log var + squared / var) is convex in offset and power, so Newton's method with
        halved steps finds its minimum. A negative power is set to 0: more trouble never means
        smaller errors.
        """
        if not bool((u > 0).all()):
            raise ValueError("`u` must be positive everywhere; it has a logarithm.")
        logs = u.double().log()
        fitted = [_newton(logs, column) for column in squared.double().T]
        return PowerLaw(*torch.stack(fitted, 1).to(squared.dtype))


def _newton(logs: Tensor, squared: Tensor) -> Tensor:  # (2,)
    design = torch.stack([torch.ones_like(logs), logs], 1)

    def nll(point: Tensor) -> Tensor:
        value = design @ point
        return (value + squared * torch.exp(-value)).sum()

    # An error of 0 is no reason for a variance of 0: the smallest positive mean protects the log.
    constant = torch.stack([squared.mean().clamp_min(1e-30).log(), torch.zeros_like(logs[0])])
    found = constant
    for _ in range(60):
        ratio = squared * torch.exp(-(design @ found))
        gradient = design.T @ (1 - ratio)
        curvature = (design.T * ratio) @ design
        full = torch.linalg.lstsq(curvature, gradient[:, None]).solution[:, 0]
        # The step is halved until the NLL does not rise.
        points = (found - full * 0.5**halvings for halvings in range(40))
        start = nll(found)
        found = next((point for point in points if bool(nll(point) <= start)), found)
        if float(full.abs().max()) < 1e-9:
            break
    return constant if found[1] < 0 else found


OUTPUTS = 6
_LINEAR = (0, 2, 4)  # which layers of a network have weights


class ErrorNetwork(nn.Module):
    """A perceptron from readings to errors; both are standardized inside, errors stay so."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Buffer(torch.zeros(COUNT))
        self.spread = nn.Buffer(torch.ones(COUNT))
        self.layers = nn.Sequential(
            nn.Linear(COUNT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, OUTPUTS)
        )

    def forward(self, readings: Tensor) -> Tensor:  # (n, 14) -> (n, 6)
        """Errors in units of their size in training: comparable, so that a mean makes sense."""
        return self.layers((readings - self.center) / self.spread)


class Siblings(nn.Module):
    """Several networks that differ in their first weights only, as batched layers: trains fast."""

    def __init__(self, count: int, data: Pairs) -> None:
        super().__init__()
        self.center = nn.Buffer(data.x.mean(0))
        self.spread = nn.Buffer(data.x.std(0))
        first = [ErrorNetwork().state_dict() for _ in range(count)]
        self.weights = nn.ParameterList(
            [torch.stack([net[f"layers.{i}.weight"].T for net in first]) for i in _LINEAR]
        )
        self.biases = nn.ParameterList(
            [torch.stack([net[f"layers.{i}.bias"][None] for net in first]) for i in _LINEAR]
        )

    def forward(self, readings: Tensor) -> Tensor:  # (n, 14) -> (networks, n, 6)
        """The errors that every network predicts."""
        x = ((readings - self.center) / self.spread).expand(len(self.weights[0]), -1, -1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = torch.relu(x) if i < last else x
        return x

    def apart(self) -> list[ErrorNetwork]:
        """The networks one by one, ready for use."""
        networks = []
        for index in range(len(self.weights[0])):
            state = {"center": self.center, "spread": self.spread}
            for layer, weight, bias in zip(_LINEAR, self.weights, self.biases, strict=True):
                state[f"layers.{layer}.weight"] = weight[index].T
                state[f"layers.{layer}.bias"] = bias[index, 0]
            network = ErrorNetwork()
            network.load_state_dict(state)
            networks.append(network.eval().requires_grad_(False))
        return networks


def absolute_error(found: Tensor, errors: Tensor) -> Tensor:  # (networks, n, 6), (n, 6)
    """The L1 loss of the paper, mean over networks; its gradient has the size of a single one's."""
    return (found - errors).abs().mean() * len(found)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Errors as a linear function of velocity and rates (Faessler et al. 2018)."""

    weights: Tensor  # (6, 6), to errors in the network's units
    # Its squared errors on held-out flights as a power of 1 + speed**2: what it leaves out is
    # quadratic in speed.
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
    """A network that says how sure it is, with what that meant on held-out flights."""

    sure: Uncertain
    gate: Gate  # the paper's: trusts up to five times the mean held-out uncertainty
    law: PowerLaw  # its squared errors as a power of the mean of its predicted variances
    # Trusts readings up to the novelty of 99 % of the held-out ones; only with a posterior.
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
        posterior = sure.setup.variance_model
        novelty_gate = None if posterior is None else Gate.on_novelty(posterior)
        return SureNetwork(sure, Gate.fit(var), PowerLaw.fit(var.mean(1), squared), novelty_gate)


@dataclass(frozen=True, eq=False)
class Models:
    """What the policies choose from."""

    network: ErrorNetwork  # the plain one
    dropout: SureNetwork  # the same with the paper's uncertainty
    posterior: SureNetwork  # the same with the default's: what `fit` found about its masks
    ensemble: SureNetwork  # several networks that differ in their first weights, with their spread
    linear: LinearModel  # the fallback
    scale: Tensor  # (6,), size of the errors in training: the networks' units
