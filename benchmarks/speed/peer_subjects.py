"""Networks on which peers are compared; none needs data that have to be fetched."""

from __future__ import annotations

from typing import Any

import torch
from models import trained
from models.resnet import ResNet18
from torch import Tensor, nn
from torch.nn import functional as F

from speed.networks import NETWORKS, with_statistics
from speed.passes import RATE

GRAY = 1 / 255
# Standard deviations of the sensor noise.
NOISE = {
    "MLP": 0.2,
    "plain CNN": 8 * GRAY,
    "LSTM": 0.2,
    "DroNet, 64 x 64": 8 * GRAY,
    "ResNet-18, 32 x 32": 8 * GRAY,
}
DROPOUT = ("MLP", "ResNet-18, 32 x 32")


def subject(name: str, count: int) -> tuple[nn.Module, Tensor]:
    """The network and its inputs: all are trained but ResNet-18."""
    match name:
        case "MLP":
            return trained.mlp(), trained.vectors(count)
        case "plain CNN":
            return trained.cnn(), trained.spots(count)[0]
        case "LSTM":
            return trained.lstm(), trained.sequences(count)
        case "DroNet, 64 x 64":
            return _on_roads(count)
        case _:
            return NETWORKS[name].made(), NETWORKS[name].input(count)


def _on_roads(count: int) -> tuple[nn.Module, Tensor]:
    """The network that ships with the laboratory, and roads that it has not seen."""
    from howsure_lab.experiments.steering.model import load_trained
    from howsure_lab.experiments.steering.scenes import draw_scenes, render

    return load_trained(), render(draw_scenes(count, seed=12345))


def with_dropout(name: str, count: int) -> tuple[nn.Module, Tensor]:
    """A network that has dropout modules of its own, as the peer needs them, and its inputs."""
    model, x = subject(name, count)
    if isinstance(model, nn.Sequential):
        layers: list[nn.Module] = []
        for layer in model:
            layers += [layer, nn.Dropout(RATE)] if isinstance(layer, nn.ReLU) else [layer]
        return nn.Sequential(*layers).eval(), x
    torch.manual_seed(0)
    return WithDropout(with_statistics(ResNet18(1))).eval().requires_grad_(False), x


class WithDropout(nn.Module):
    """A ResNet with dropout modules after every block."""

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
