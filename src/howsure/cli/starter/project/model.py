"""A small network for tables. Put your own in its place: howsure needs nothing special of it."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    """Two numbers in, one number out."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(
        self,
        x: Tensor,  # (batch, 2)
    ) -> Tensor:  # (batch, 1)
        """The prediction."""
        return self.layers(x)


def build(hidden: int = 32) -> Net:
    """What the commands name as `model:build`; `--model-args '{"hidden": 64}'` changes it."""
    return Net(hidden)
