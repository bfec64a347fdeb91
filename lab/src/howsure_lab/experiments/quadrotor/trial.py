"""All policies under all conditions, in one simulation: vehicle = policy x case.

A policy takes what is known at one step and its own memory of earlier steps, and gives the
correction with the share that the network has in it. Policies are pure: the memory is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from howsure.deploy.gate import Gate, blend
from howsure_lab.experiments.quadrotor.flight import (
    Flight,
    Trajectories,
    World,
    circle,
    fly,
    lemniscate,
    together,
)
from howsure_lab.experiments.quadrotor.models import COUNT, VELOCITY, Models, SureNetwork, read
from howsure_lab.experiments.quadrotor.physics import FULL_PHYSICS, Array, model_error

MANEUVERS: dict[str, Callable[[float, float], Trajectories]] = {
    "circle": circle,
    "lemniscate": lemniscate,
}


@dataclass(frozen=True)
class Regime:
    """A condition."""

    speed: float = 7.0  # the largest, m/s
    radius: float = 4.0  # of circle and lemniscate, m
    heading: float = 0.0  # where the nose points, rad; in training 0
    wind: float = 0.0  # standard deviation of the gusts' velocity along each level axis, m/s
    fault: float = 0.0  # added to the forward velocity that the network reads, m/s
    shared: bool = False  # whether the linear model reads the same fault


REGIMES = {
    "normal": Regime(),
    # Three eighths faster than the fastest training flight. The radius keeps accelerations in the
    # range of training; at 12 m/s not even the true error keeps the rotors out of saturation.
    "fast": Regime(speed=11.0, radius=8.0),
    # The physics does not know the heading, but a network that has seen only one may think so.
    "heading": Regime(heading=np.pi / 2),
    "gusts": Regime(wind=3.0),
    "input_fault": Regime(fault=20.0),
    "shared_fault": Regime(fault=20.0, shared=True),
}


class Case(NamedTuple):
    """A maneuver in a regime: one vehicle for each policy."""

    regime: str
    maneuver: str

    @property
    def name(self) -> str:
        """Such as "normal circle"."""
        return f"{self.regime} {self.maneuver}"


CASES = tuple(Case(regime, maneuver) for regime in REGIMES for maneuver in MANEUVERS)


def trajectories(cases: Sequence[Case]) -> Trajectories:
    """What the vehicles of these cases should fly."""
    flown = [(REGIMES[case.regime], MANEUVERS[case.maneuver]) for case in cases]
    return together([move(r.speed, r.radius).facing(r.heading) for r, move in flown])


def gusts(cases: Sequence[Case], generator: np.random.Generator, *, terms: int = 6) -> Trajectories:
    """The wind of these cases: a sum of random waves with periods of 2 to 12 s; level."""
    shape = terms, len(cases)
    rates = generator.uniform(0.5, 3.0, shape)
    cosines, sines = generator.normal(size=(2, 3, *shape))
    strength = np.array([REGIMES[case.regime].wind for case in cases])
    level = np.array([1.0, 1.0, 0.0])[:, None, None] * strength / np.sqrt(terms)
    return Trajectories(level * cosines, level * sines, rates, np.zeros(len(cases)))


def faults(cases: Sequence[Case], time: float, *, shared: bool) -> Array:  # (n, 14)
    """What is added to the readings now: 1 s in every 3; the first 2 s are free of it.

    The network's readings, or, if it is `shared`, those of the linear model.
    """
    added = np.zeros((len(cases), COUNT))
    if time % 3.0 >= 2.0:
        regimes = [REGIMES[case.regime] for case in cases]
        added[:, VELOCITY.start] = [r.fault if r.shared or not shared else 0.0 for r in regimes]
    return added


class Known(NamedTuple):
    """What can be known at a step, for n vehicles, in the networks' units."""

    mean: Tensor  # (n, 6), of the plain network or of the ensemble
    var: Tensor  # (n, 6), predicted; NaN for a policy that does not ask
    linear: Tensor  # (n, 6)
    linear_var: Tensor  # (n, 6)
    truth: Tensor  # (n, 6), for the line that no real vehicle can have
    novelty: Tensor  # (n,), NaN without a posterior


class Decision(NamedTuple):
    """The correction, and the network's share in it from 0 to 1."""

    correction: Tensor  # (n, 6)
    share: Tensor  # (n,)
    memory: Any = None


# Of a past surprise, per step of 5 ms: a time constant of a fifth of a second.
_FORGETTING = 0.975
# How far beyond the threshold an answer that is no number counts for the steps after it.
_LOST = 2.0
Decide = Callable[[SureNetwork, Known, Any], Decision]


@dataclass(frozen=True)
class Policy:
    """A line of the table."""

    label: str
    decide: Decide
    # Whose mean and variance: "network" (no variance), "dropout", "posterior" or "ensemble".
    source: str = "network"


def _fixed(which: str, share: float, sure: SureNetwork, known: Known, memory: object) -> Decision:
    """A decision that always takes the same estimate."""
    correction = getattr(known, which) if which else torch.zeros_like(known.mean)
    return Decision(correction, torch.full((len(correction),), share))


def hard_gate(sure: SureNetwork, known: Known, memory: object) -> Decision:
    """The paper's: the network where it is sure enough, else nothing."""
    trusted = sure.gate(known.var)
    return Decision(sure.gate.select(known.mean, known.var, 0.0), trusted.float())


def gate_to_linear(sure: SureNetwork, known: Known, memory: object) -> Decision:
    """The same gate with hysteresis, and the linear model instead of nothing."""
    return _or_linear(sure.gate, known.var, known, memory)


def novelty_to_linear(sure: SureNetwork, known: Known, memory: object) -> Decision:
    """The network where its reading is like the known ones, else the linear model."""
    assert sure.novelty_gate is not None
    return _or_linear(sure.novelty_gate, known.novelty, known, memory)


def _or_linear(gate: Gate, uncertainty: Tensor, known: Known, memory: Any) -> Decision:
    state, trusted = gate.with_hysteresis(ratio=0.6, hold=10).update(memory, uncertainty)
    correction = torch.where(trusted[:, None], known.mean, known.linear)
    return Decision(correction, trusted.float(), state)


def soft_blend(sure: SureNetwork, known: Known, memory: Any) -> Decision:
    """Network and linear model, each output weighted by its precision.

    Both variances are of this moment: the network's from what it predicts, the linear model's from
    the speed, each turned into squared errors by a law that was fitted to held-out flights. Trust
    is lost at once and won back over a fifth of a second, so that it does not chatter.
    """
    beyond = sure.beyond(known.var)
    lost = ~beyond.isfinite()  # a reading that is no number makes an answer that is none
    beyond = torch.where(lost, _LOST, beyond)
    held = beyond if memory is None else torch.maximum(beyond, _FORGETTING * memory)
    var = sure.error_var(known.var, held).masked_fill(lost[:, None], torch.inf)
    return _blended(known, var, held)


def plain_blend(sure: SureNetwork, known: Known, memory: object) -> Decision:
    """Network and linear model by precision, with the network's variance as it is.

    A posterior's variance is fitted to held-out errors and grows with the novelty by itself, so
    nothing here is chosen by hand.
    """
    return _blended(known, torch.where(known.var.isfinite(), known.var, torch.inf))


def _blended(known: Known, var: Tensor, memory: Any = None) -> Decision:
    mixed = blend(known.mean, var, known.linear, known.linear_var)
    return Decision(mixed.mean, (known.linear_var / (known.linear_var + var)).mean(1), memory)


POLICIES = {
    "nominal": Policy("nominal model", partial(_fixed, "", 0.0)),
    "linear": Policy("linear (Faessler et al.)", partial(_fixed, "linear", 0.0)),
    "mlp": Policy("MLP", partial(_fixed, "mean", 1.0)),
    "hard_gate": Policy("MLP, the paper's hard gate", hard_gate, "dropout"),
    "gate_to_linear": Policy("MLP, gate to linear, hysteresis", gate_to_linear, "dropout"),
    "soft_blend": Policy("MLP, soft blend with linear", soft_blend, "dropout"),
    "posterior_gate": Policy("MLP, posterior, the paper's hard gate", hard_gate, "posterior"),
    "novelty_gate": Policy("MLP, novelty gate to linear", novelty_to_linear, "posterior"),
    "posterior_blend": Policy("MLP, posterior, blend with linear", plain_blend, "posterior"),
    "ensemble": Policy("5 MLPs", partial(_fixed, "mean", 1.0), "ensemble"),
    "ensemble_blend": Policy("5 MLPs, soft blend with linear", soft_blend, "ensemble"),
    "true_error": Policy("true error (out of reach)", partial(_fixed, "truth", 0.0)),
}
LABELS = {name: policy.label for name, policy in POLICIES.items()}


class Trial(NamedTuple):
    """What was flown; vehicles are ordered by policy, then by case."""

    flight: Flight
    shares: Array  # (steps, n), the network's share in the correction
    stds: Array  # (steps, n), the network's mean std in its units


@dataclass(eq=False)
class Pilot:
    """Corrects all vehicles at every step, and keeps what it decided."""

    models: Models
    generator: np.random.Generator
    memory: dict[str, Any] = field(default_factory=dict)
    shares: list[Array] = field(default_factory=list)
    stds: list[Array] = field(default_factory=list)

    @torch.inference_mode()
    def __call__(self, time: float, state: Array, wind: Array) -> Array:  # (6, n)
        """The correction of every vehicle, in the body's frame."""
        exact = read(FULL_PHYSICS, state, self.generator)
        cases = CASES * len(POLICIES)
        seen, own = (
            torch.from_numpy(exact + faults(cases, time, shared=shared)).float()
            for shared in (False, True)
        )
        error = torch.from_numpy(model_error(FULL_PHYSICS, state, wind).T).float()
        mean, var, novelty = self._network(seen)
        linear, scale = self.models.linear, self.models.scale
        known = Known(mean, var, linear(own), linear.var(own), error / scale, novelty)
        self.stds.append(var.sqrt().mean(1).numpy())
        return (self._decided(known) * scale).T.double().numpy()

    def _network(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and novelty for each vehicle, as its policy asks: they cost time."""
        mean = self.models.network(seen)
        var, novelty = torch.full_like(mean, torch.nan), torch.full_like(mean[:, 0], torch.nan)
        sources = [policy.source for policy in POLICIES.values() for _ in CASES]
        for source in sorted(set(sources) - {"network"}):
            rows = torch.tensor([each == source for each in sources])
            found = getattr(self.models, source).sure(seen[rows])
            var[rows] = found.total_var
            if source == "ensemble":
                mean[rows] = found.mean
            if found.joint_novelty is not None:
                novelty[rows] = found.joint_novelty
        return mean, var, novelty

    def _decided(self, known: Known) -> Tensor:  # (n, 6)
        decisions = []
        each_policy = zip(*(part.split(len(CASES)) for part in known), strict=True)
        for (name, policy), parts in zip(POLICIES.items(), each_policy, strict=True):
            # A policy of the plain network does not ask how sure it is, and gets any.
            sure = getattr(self.models, "dropout" if policy.source == "network" else policy.source)
            decision = policy.decide(sure, Known(*parts), self.memory.get(name))
            self.memory[name] = decision.memory
            decisions.append(decision)
        self.shares.append(torch.cat([decision.share for decision in decisions]).numpy())
        return torch.cat([decision.correction for decision in decisions])


def flown(models: Models, seconds: float, seed: int) -> Trial:
    """Flies every policy in every case; all policies meet the same wind."""
    generator = np.random.default_rng(seed)
    repeated = [*range(len(CASES))] * len(POLICIES)
    wind = gusts(CASES, generator).chosen(repeated)
    pilot = Pilot(models, generator)
    flight = fly(World(trajectories(CASES).chosen(repeated), wind=wind), seconds, pilot)
    return Trial(flight, np.stack(pilot.shares), np.stack(pilot.stds))
