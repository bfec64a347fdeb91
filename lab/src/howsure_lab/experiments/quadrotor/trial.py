"""All policies in all cases, in one simulation: vehicle = policy x case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure_lab.experiments.quadrotor.flight import Flight, World, fly
from howsure_lab.experiments.quadrotor.models import Models
from howsure_lab.experiments.quadrotor.policies import POLICIES, Known
from howsure_lab.experiments.quadrotor.readings import read
from howsure_lab.experiments.quadrotor.regimes import Case, faults, gusts, trajectories
from howsure_lab.experiments.quadrotor.rigid_body import model_error
from howsure_lab.experiments.quadrotor.vehicle import FULL_PHYSICS, Array


@dataclass(frozen=True, eq=False)
class Trial:
    """What was flown; vehicles are ordered by policy, then by case.

    Attributes:
        flight: Of all vehicles.
        shares: (steps, n), the network's share in the correction.
        stds: (steps, n), the network's mean std in its units.
        policies: Their names.
        cases: The cases.
    """

    flight: Flight
    shares: Array
    stds: Array
    policies: tuple[str, ...]
    cases: tuple[Case, ...]

    def index(self, policy: str, case: Case) -> int:
        """The index of the vehicle that flies `case` by `policy`."""
        return self.policies.index(policy) * len(self.cases) + self.cases.index(case)


@dataclass(eq=False)
class Pilot:
    """Corrects all vehicles at every step, and keeps what it decided."""

    models: Models
    policies: tuple[str, ...]
    cases: tuple[Case, ...]
    generator: np.random.Generator
    memory: dict[str, Any] = field(default_factory=dict)
    shares: list[Array] = field(default_factory=list)
    stds: list[Array] = field(default_factory=list)

    @torch.inference_mode()
    def __call__(self, time: float, state: Array, wind: Array) -> Array:  # (6, n)
        """The correction of every vehicle, in the body's frame."""
        exact = read(FULL_PHYSICS, state, self.generator)
        cases = self.cases * len(self.policies)
        seen = _tensor(exact + faults(cases, time, shared=False))
        own = _tensor(exact + faults(cases, time, shared=True))
        truth = _tensor(model_error(FULL_PHYSICS, state, wind).T) / self.models.scale
        mean, var, novelty = self._network(seen)
        linear = self.models.linear
        known = Known(mean, var, linear(own), linear.var(own), truth, novelty)
        self.stds.append(var.sqrt().mean(1).numpy())
        return (self._decided(known) * self.models.scale).T.double().numpy()

    def _network(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and novelty for each vehicle, as its policy asks: they cost time."""
        mean = self.models.network(seen)
        var, novelty = torch.full_like(mean, torch.nan), torch.full_like(mean[:, 0], torch.nan)
        sources = [POLICIES[name].source for name in self.policies for _ in self.cases]
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
        count, decisions = len(self.cases), []
        for i, name in enumerate(self.policies):
            own = Known(*(part[i * count : (i + 1) * count] for part in known))
            sure = POLICIES[name].sure_network(self.models)
            decision = POLICIES[name].decide(sure, own, self.memory.get(name))
            self.memory[name] = decision.memory
            decisions.append(decision)
        self.shares.append(torch.cat([decision.share for decision in decisions]).numpy())
        return torch.cat([decision.correction for decision in decisions])


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(values).float()


def flown(
    models: Models, cases: Sequence[Case], seconds: float, seed: int, policies: Sequence[str]
) -> Trial:
    """Flies every policy in every case; all policies meet the same wind."""
    generator = np.random.default_rng(seed)
    repeated = [*range(len(cases))] * len(policies)
    world = World(
        trajectories(cases).chosen(repeated), wind=gusts(cases, generator).chosen(repeated)
    )
    pilot = Pilot(models, tuple(policies), tuple(cases), generator)
    flight = fly(world, seconds, pilot)
    shares, stds = np.stack(pilot.shares), np.stack(pilot.stds)
    return Trial(flight, shares, stds, pilot.policies, pilot.cases)
