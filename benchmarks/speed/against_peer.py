"""howsure against a peer: MC dropout on a network that has dropout of its own."""

from __future__ import annotations

import copy
import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from speed.against import HOWSURE, compared, network_of
from speed.passes import PLAIN, RATE, SAMPLES, plain

PEER = "torch-uncertainty"
CASES = ("ResNet-18, batch 1", "ResNet-18, batch 8")


class WithDropout(nn.Module):
    """A ResNet with dropout modules after every block, as the peer needs them."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.drops = nn.ModuleList(nn.Dropout2d(RATE) for stage in net.layers for _ in stage)

    def forward(self, x: Tensor) -> Tensor:
        net = self.net
        x = net.pool(net.relu(net.bn1(net.conv1(x))))
        blocks = (block for stage in net.layers for block in stage)
        for block, drop in zip(blocks, self.drops, strict=True):
            x = drop(block(x))
        return net.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """T = 20 plain passes with masks, by both.

    The peer has an environment of its own; `left_out` says so where it is not installed.
    """
    if importlib.util.find_spec("torch_uncertainty") is None:
        return {"left_out": f"`{PEER}` is not installed: benchmarks/requirements-peers.txt"}
    model, x = network_of(name)
    model = WithDropout(model).eval()
    sure = hs.Uncertain(model, None, "mc_dropout", samples=SAMPLES)
    calls = {
        PLAIN: plain(model, x),
        f"{PEER}, in a loop": plain(_theirs(model, at_once=False), x),
        f"{PEER}, at once": plain(_theirs(model, at_once=True), x),
        HOWSURE: lambda: sure(x),
    }
    return {**compared(calls, quick=quick), "version": version("torch-uncertainty")}


def _theirs(model: nn.Module, *, at_once: bool) -> nn.Module:
    """The peer's wrapper around a copy: it puts dropout into train mode."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
    from torchvision_shim import declare_missing_operators

    declare_missing_operators()
    from torch_uncertainty.methods import mc_dropout

    return mc_dropout(copy.deepcopy(model), num_estimators=SAMPLES, on_batch=at_once).eval()
