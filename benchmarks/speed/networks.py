"""The networks whose predictions are timed, and the calls: plain, and of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from models.resnet import ResNet18, ResNet50
from models.trained import Perceptron, Recurrent, SmallViT
from torch import Tensor, nn

import howsure as hs
from howsure.deploy.compile import compiled_graph
from howsure.deploy.tracing import traced
from howsure_lab.experiments.motion.model import FlowNetS
from howsure_lab.experiments.recognition.resnets import CifarResNet
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
    last: tuple[str, ...] = ()
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
        self.flow = FlowNetS()
        self.register_buffer("cell", torch.tensor([[200]]))

    def forward(self, x: Tensor) -> Tensor:
        cell = self.get_buffer("cell").expand(len(x), 1)
        return self.flow(x, cell)[:, 0, 0]


NETWORKS = {
    "DroNet": Network(DroNet, (1, 200, 200), ("b.2",)),
    "ResNet-18": Network(lambda: ResNet18(1), (3, 224, 224), ("layers.3.1.conv2",)),
    "ResNet-18, 32 x 32": Network(lambda: ResNet18(1), (3, 32, 32), ("layers.3.1.conv2",)),
    "ResNet-20, ten outputs": Network(lambda: CifarResNet(20), (3, 32, 32), ("layer3.2.conv2",)),
    "ResNet-50": Network(lambda: ResNet50(1), (3, 224, 224), ("layers.3.2.conv3",)),
    "FlowNetS": Network(FlowNetS, (3, 128, 128), ("smooth.0", "flow.smooth.0"), AtOneCell),
    "small ViT": Network(SmallViT, (3, 224, 224), ("blocks.5.fc1",)),
    "small ViT, 64 x 64": Network(lambda: SmallViT(size=64), (3, 64, 64), ("blocks.5.fc1",)),
    "MLP": Network(Perceptron, (16,), ("4",)),
    "LSTM": Network(Recurrent, (20, 6), ("lstm",)),
}
# How time grows with larger ones is in `cases.GROWTH`.
BATCHES = (1, 8)


NOISE = (2 / 255) ** 2
RATE = 0.05
SAMPLES = 20
PLAIN, FOLDED = "plain, eager", "plain, folded and compiled"


@dataclass(frozen=True)
class Kind:
    """A way to predict.

    Attributes:
        method: As `Uncertain` takes it.
        options: As `Uncertain` takes them.
        last: Whether dropout goes to the network's last layers only.
        forwards: How many plain forwards it takes, about; decides what is left out.
        passes: How many passes of ADF it takes, about; likewise.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    last: bool = False
    forwards: float = 4
    passes: float = 0

    def uncertain(self, network: Network, model: nn.Module) -> hs.Uncertain:
        """The wrapper."""
        places: dict[str, Any] = {"placement": list(network.last)} if self.last else {}
        return hs.Uncertain(model, NOISE, self.method, **self.options, **places)


_DROPOUT = {"rate": RATE, "samples": SAMPLES}
KINDS = {
    "ADF": Kind("adf"),
    "T = 20, dropout everywhere": Kind("sampled_adf", _DROPOUT, forwards=40, passes=10),
    "T = 20, dropout in last layers": Kind("sampled_adf", _DROPOUT, last=True, passes=3),
    "gradients, 8 points": Kind("gradients", {"samples": 8}, forwards=14),
    "gradients, 4 points": Kind("gradients", {"samples": 4}, forwards=7),
    "gradients, noise and dropout": Kind("gradients", {"rate": RATE}, forwards=30),
    "20 samples": Kind("noise_sampling", {"samples": SAMPLES}, forwards=20),
}
MUST_HOLD = ("ADF", "T = 20, dropout everywhere", "gradients, 8 points")
# Those that are compiled unless `--compile-all` asks for more: compiling takes minutes.
COMPILED = {
    ("DroNet", 1): MUST_HOLD,
    ("ResNet-18", 1): MUST_HOLD,
    ("ResNet-18", 8): MUST_HOLD,
    ("ResNet-18, 32 x 32", 1): ("gradients, 8 points",),
    ("ResNet-50", 1): ("ADF",),
    ("FlowNetS", 1): ("ADF",),
    ("small ViT", 1): ("ADF",),
    ("small ViT, 64 x 64", 1): ("gradients, 8 points",),
    ("MLP", 1): MUST_HOLD,
    ("LSTM", 1): MUST_HOLD,
}


def plain(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """One forward pass as users run it."""

    def call() -> Any:
        with torch.inference_mode():
            return model(x)

    return call


def folded(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """One forward pass at its best: batch norms folded, weights laid out, compiled."""
    compiled = compiled_graph(traced(lambda image: [model(image)], [x]), [x])

    def call() -> Any:
        with torch.no_grad():
            return compiled(x)

    return call


@dataclass
class Made:
    """What was made for a case: calls, and what was noted on the way."""

    calls: dict[str, Callable[[], Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    seconds_to_compile: dict[str, float] = field(default_factory=dict)

    def add_compiled(self, name: str, sure: hs.Uncertain, x: Tensor) -> None:
        """The compiled prediction, and how far it is from the eager one."""
        eager = sure(x)
        twin = hs.Uncertain(sure.model, method=sure.method)
        twin.setup = sure.setup
        start = time.perf_counter()
        found = twin.compile()(x)
        self.seconds_to_compile[name] = round(time.perf_counter() - start, 1)
        compiled = twin._compiled
        if compiled is None or None in compiled.programs.values():
            self.left_out[name] = "cannot be compiled; it runs as eager"
            return
        self.difference[name] = relative(found, eager)
        self.calls[name] = lambda: twin(x)


def relative(found: hs.Prediction, expected: hs.Prediction) -> float:
    """The largest difference of a field, relative to the field's largest value."""
    worst = 0.0
    for name in ("mean", "data_var", "model_var"):
        one, two = getattr(found, name), getattr(expected, name)
        scale = max(float(two.abs().max()), torch.finfo(two.dtype).tiny)
        worst = max(worst, float((one - two).abs().max()) / scale)
    return worst
