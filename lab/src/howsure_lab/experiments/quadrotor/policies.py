"""How much of the network's answer is applied: the lines of the table.

A policy takes what is known at one step and its own memory of earlier steps, and gives the
correction with the share that the network has in it. Policies are pure: the memory is handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from howsure.deploy.gate import Gate, blend
from howsure_lab.experiments.quadrotor.models import Models, SureNetwork


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
    """A line of the table.

    Attributes:
        label: What the line says.
        decide: The rule.
        source: Whose mean and variance: "network" (no variance), "dropout", "posterior" or
            "ensemble".
    """

    label: str
    decide: Decide
    source: str = "network"

    def sure_network(self, models: Models) -> SureNetwork:
        """What says how sure the policy's network is."""
        return models.dropout if self.source == "network" else getattr(models, self.source)


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
    mixed = blend(known.mean, var, known.linear, known.linear_var)
    return Decision(mixed.mean, (known.linear_var / (known.linear_var + var)).mean(1), held)


def plain_blend(sure: SureNetwork, known: Known, memory: object) -> Decision:
    """Network and linear model by precision, with the network's variance as it is.

    A posterior's variance is fitted to held-out errors and grows with the novelty by itself, so
    nothing here is chosen by hand.
    """
    var = torch.where(known.var.isfinite(), known.var, torch.inf)
    mixed = blend(known.mean, var, known.linear, known.linear_var)
    return Decision(mixed.mean, (known.linear_var / (known.linear_var + var)).mean(1))


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
