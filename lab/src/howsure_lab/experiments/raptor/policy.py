"""The RAPTOR policy as a torch network, with the weights of the package `foundation-policy`.

Eschmann, Albani & Loianno 2025, "RAPTOR: a foundation policy for quadrotor control". Its package
runs it in numpy; here the same three layers take the same weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from howsure_lab.optional import imported

# What the policy reads, in its order: how many numbers each sensor gives.
SENSORS = {"position": 3, "attitude": 9, "velocity": 3, "rates": 3, "command": 4}
READINGS = sum(SENSORS.values())
MOTORS = ("front right", "back right", "back left", "front left")
# The package computes in float64, torch here in float32.
_ROUNDING = 1e-4


class Policy(nn.Module):
    """Dense layer, GRU, dense layer: the four motor commands after a history of readings."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(READINGS, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.last = nn.Linear(width, len(MOTORS))

    def forward(
        self,
        position: Tensor,  # (n, steps, 3), from the target, m
        attitude: Tensor,  # (n, steps, 9), rotation matrix from body to world
        velocity: Tensor,  # (n, steps, 3), against the target's, m/s
        rates: Tensor,  # (n, steps, 3), in the body's frame, rad/s
        command: Tensor,  # (n, steps, 4), of the step before
        memory: Tensor,  # (n, width), the GRU's state before the history
    ) -> Tensor:  # (n, 4)
        """The commands after the last reading; motors take them from -1 to 1."""
        readings = torch.cat([position, attitude, velocity, rates, command], -1)
        return self.after(readings, memory)[0][:, -1]

    def after(self, readings: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Commands (n, steps, 4) and the GRU's states (n, steps, width) after every reading."""
        states, _ = self.gru(self.first(readings).relu(), memory[None].contiguous())
        return self.last(states), states

    def start(self, count: int) -> Tensor:  # (n, width)
        """The memory of policies that have read nothing."""
        return torch.zeros(count, self.gru.hidden_size)


class Shipped(NamedTuple):
    """The policy of the package, and the readings that its checkpoint is tested with."""

    policy: Policy
    example: Tensor  # (steps, n, 22); standard normal numbers, not a flight


def shipped() -> Shipped:
    """The policy with its weights, after its own example has come out."""
    spec = importlib.util.find_spec("foundation_policy")
    if spec is None or spec.origin is None:
        raise ImportError("The RAPTOR policy is in a package: `pip install foundation-policy`.")
    h5py = imported("h5py", "The policy's weights need h5py", "h5py")
    with h5py.File(Path(spec.origin).parent / "blob/checkpoint.h5") as file:
        return read(file)


def read(file: Mapping[str, object]) -> Shipped:
    """The policy and its example from arrays by path; an error if its outputs differ."""
    start = _tensor(file, "actor/layers/1/initial_hidden_state/parameters")
    if start.any():
        raise ValueError("The policy starts from a memory that is not 0; here it must be.")
    policy = Policy(len(start))
    # The checkpoint's gates have torch's order.
    names = {
        "first.weight": "0/weights",
        "first.bias": "0/biases",
        "gru.weight_ih_l0": "1/weights_input",
        "gru.weight_hh_l0": "1/weights_hidden",
        "gru.bias_ih_l0": "1/biases_input",
        "gru.bias_hh_l0": "1/biases_hidden",
        "last.weight": "2/weights",
        "last.bias": "2/biases",
    }
    found = {key: _tensor(file, f"actor/layers/{at}/parameters") for key, at in names.items()}
    shapes = {key: each.shape for key, each in policy.state_dict().items()}
    policy.load_state_dict({key: each.reshape(shapes[key]) for key, each in found.items()})
    example, wanted = (_tensor(file, f"example/{name}") for name in ("input", "output"))
    with torch.no_grad():
        commands, _ = policy.after(example.transpose(0, 1), policy.start(example.shape[1]))
    off = float((commands.transpose(0, 1) - wanted).abs().max())
    if not off < _ROUNDING:
        raise ValueError(
            f"The policy's outputs differ by {off:.2g} from those of its own example: this "
            "checkpoint is another network than a dense layer, a GRU and a dense layer."
        )
    return Shipped(policy.eval().requires_grad_(False), example)


def _tensor(file: Mapping[str, Any], path: str) -> Tensor:
    return torch.from_numpy(file[path][()]).float()
