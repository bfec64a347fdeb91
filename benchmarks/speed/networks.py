"""The networks whose predictions are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from models.cifar_resnet import CifarResNet
from models.resnet import ResNet18, ResNet50
from models.sequences import Perceptron, Recurrent, SmallViT
from torch import Tensor, nn

from howsure_lab.experiments.steering.model import DroNet


@dataclass(frozen=True)
class Network:
    """A network with one output, with ten, or with an image of them.

    Attributes:
        build: Makes it, with random weights.
        shape: Of one input.
        last: The last layers before the output, for dropout there alone.
        single: Makes the same network with one output, where it has an image of them.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    last: tuple[str, ...]
    single: Callable[[], nn.Module] | None = None

    def made(self, *, one_output: bool = False) -> nn.Module:
        """The network as after training: in eval mode, batch norms with statistics."""
        torch.manual_seed(0)
        make = self.single if one_output and self.single else self.build
        return with_statistics(make().eval().requires_grad_(False))

    def input(self, batch: int) -> Tensor:
        """Inputs between 0 and 1."""
        return torch.rand(batch, *self.shape, generator=torch.Generator().manual_seed(1))


def with_statistics(model: nn.Module) -> nn.Module:
    """The model with batch norms that do something."""
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            assert module.running_mean is not None
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model


class AtOneCell(nn.Module):
    """One component of the flow in one cell."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = flownet()
        self.register_buffer("cell", torch.tensor([[200]]))

    def forward(self, x: Tensor) -> Tensor:
        cell = self.get_buffer("cell").expand(len(x), 1)
        return self.flow(x, cell)[:, 0, 0]


def flownet() -> nn.Module:
    from howsure_lab.experiments.motion.model import FlowNetS

    return FlowNetS()


NETWORKS = {
    "DroNet": Network(DroNet, (1, 200, 200), ("b.2",)),
    "ResNet-18": Network(lambda: ResNet18(1), (3, 224, 224), ("layers.3.1.conv2",)),
    "ResNet-18, 32 x 32": Network(lambda: ResNet18(1), (3, 32, 32), ("layers.3.1.conv2",)),
    "ResNet-20, ten outputs": Network(lambda: CifarResNet(3), (3, 32, 32), ("layer3.2.conv2",)),
    "ResNet-50": Network(lambda: ResNet50(1), (3, 224, 224), ("layers.3.2.conv3",)),
    "FlowNetS": Network(flownet, (3, 128, 128), ("smooth.0", "flow.smooth.0"), AtOneCell),
    "small ViT": Network(SmallViT, (3, 224, 224), ("blocks.5.fc1",)),
    "small ViT, 64 x 64": Network(lambda: SmallViT(size=64), (3, 64, 64), ("blocks.5.fc1",)),
    "MLP": Network(Perceptron, (16,), ("4",)),
    "LSTM": Network(Recurrent, (20, 6), ("lstm",)),
}
# Of images; how time grows with larger ones is in growth.py.
BATCHES = (1, 8)
