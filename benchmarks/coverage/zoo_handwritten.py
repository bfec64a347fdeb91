"""Small networks as people write them by hand: none comes from a library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from case import NOISE_VAR, Case, Setup, noisy_input
from handwritten_dense import FlowNetS, UNet
from handwritten_sequence import Seq2Seq, TemporalConvNet, WaveNet
from handwritten_sets import GraphConv, PointNet
from handwritten_tokens import ConvNeXtLike, MLPMixer, SwinLike
from torch import nn

# family, constructor, input shape
ONE_INPUT: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
    ("u-net", UNet, (2, 3, 32, 32)),
    ("flownet-s", FlowNetS, (2, 6, 64, 64)),
    ("pointnet", PointNet, (2, 3, 40)),
    ("tcn", TemporalConvNet, (2, 4, 30)),
    ("wavenet", WaveNet, (2, 1, 64)),
    ("swin-like", SwinLike, (2, 3, 32, 32)),
    ("convnext-like", ConvNeXtLike, (2, 3, 32, 32)),
    ("mlp-mixer", MLPMixer, (2, 3, 32, 32)),
    ("lstm seq2seq", Seq2Seq, (2, 12, 5)),
]


def cases() -> list[Case]:
    """Ten networks."""
    return [*(_one_input(*row) for row in ONE_INPUT), _graph()]


def _one_input(family: str, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Case:
    return Case("handwritten", family, make.__name__, lambda: noisy_input(make(), *shape))


def _graph() -> Case:
    def build() -> Setup:
        edges = (torch.rand(12, 12) < 0.3).float()
        adjacency = ((edges + edges.T + torch.eye(12)) > 0).float()
        x = {"nodes": torch.randn(2, 12, 8), "adjacency": adjacency}
        return Setup(GraphConv(), x, {"nodes": NOISE_VAR})

    return Case("handwritten", "graph conv", "GraphConv", build)
