"""Small networks of many kinds, each trained in seconds on a task of its own.

Smooth and rough ones, and those that attend to few of their many inputs: maxima, medians, sorting,
hard routing, sharp attention. Inputs have about unit variance but for images, which are between 0
and 1, and clouds of points. All have 80 to 144 noisy numbers but for one, which has 24.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.trained import EncoderBlock, Loss, trained

INPUTS = 96
EXAMPLES = 4096
Task = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Kind:
    """A kind of network with its task.

    Attributes:
        build: Makes the network, with random weights.
        task: Inputs and targets, of so many rows.
        levels: Standard deviations of the noise on every input.
        rows: How many rows are measured.
        epochs: Of the training.
        loss: Of the training.
        fit: Returns the weights after training in a way of its own.
    """

    build: Callable[[], nn.Module]
    task: Task
    levels: tuple[float, ...] = (0.03, 0.1, 0.3)
    rows: int = 32
    epochs: int = 25
    loss: Loss = F.mse_loss
    fit: Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]] | None = None

    def trained_weights(self) -> dict[str, Tensor]:
        """The weights after training, the same in every process."""
        torch.manual_seed(0)
        model = self.build()
        x, y = self.task(EXAMPLES, torch.Generator().manual_seed(1))
        if self.fit is not None:
            return self.fit(model, x, y)
        return trained(model, x, y, self.loss, self.epochs)

    def network(self, weights: dict[str, Tensor]) -> nn.Module:
        """The network with these weights, in eval mode."""
        model = self.build()
        model.load_state_dict(weights)
        return model.eval().requires_grad_(False)

    def test_data(self, rows: int) -> tuple[Tensor, Tensor]:
        """Rows that the training has not seen."""
        x, y = self.task(1024, torch.Generator().manual_seed(2))
        return x[:rows], y[:rows]


# Tasks


def projections(inputs: int, count: int = 8) -> Tensor:  # (inputs, count)
    """Orthonormal directions, the same for all tasks."""
    normal = torch.randn(inputs, count, generator=torch.Generator().manual_seed(100))
    return torch.linalg.qr(normal).Q


def projected(rows: int, generator: torch.Generator, inputs: int) -> tuple[Tensor, Tensor]:
    """Normal inputs, and 8 directions of them."""
    x = torch.randn(rows, inputs, generator=generator)
    return x, x @ projections(inputs)


def smooth(inputs: int = INPUTS) -> Task:
    """Sines, products and kinks of 8 directions."""

    def task(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, u = projected(rows, generator, inputs)
        first = torch.sin(1.5 * u[:, 0]) + u[:, 1] * u[:, 2]
        second = u[:, 3].abs() - torch.tanh(2 * u[:, 4]) * u[:, 5]
        third = torch.relu(u[:, 6] + u[:, 7]) + 0.5 * u[:, 0]
        return x, torch.stack([first, second, third], 1)

    return task


def on_directions(function: Callable[[Tensor], Tensor]) -> Task:
    """What a function says of 8 directions of normal inputs."""

    def task(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, u = projected(rows, generator, INPUTS)
        return x, function(u)

    return task


def single_index(u: Tensor) -> Tensor:
    return torch.stack([torch.sin(2 * u[:, 0]), u[:, 0].abs(), u[:, 0].square() / 2], 1)


def waves(u: Tensor) -> Tensor:
    return torch.sin(2.5 * u[:, :3])


def gentle(u: Tensor) -> Tensor:
    return u[:, :3] + 0.3 * u[:, 3:6].square()


def exponential(u: Tensor) -> Tensor:
    return torch.exp(1.5 * u[:, :3] + 0.4 * torch.sin(2 * u[:, 3:6]))


def heading(u: Tensor) -> Tensor:
    return torch.atan2(u[:, :3] + 0.3 * u[:, 6:7], u[:, 3:6] + 0.3 * u[:, 7:8])


def regions(u: Tensor) -> Tensor:
    """Another linear function in each of four regions, with jumps between them."""
    weights = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(101)) / 2
    values = torch.einsum("ri,kio->rko", u, weights)
    region = u[:, :4].argmax(1)
    return values[torch.arange(len(u)), region] + region[:, None] / 2


def classes(u: Tensor) -> Tensor:
    scores = torch.stack([u[:, 0], u[:, 1] * u[:, 2], u[:, 3].abs() - 0.7, torch.sin(2 * u[:, 4])])
    return scores.argmax(0)


def distances(u: Tensor) -> Tensor:
    places = 0.7 * torch.randn(3, 8, generator=torch.Generator().manual_seed(102))
    return (u[:, None] - places).norm(dim=2)


def spots(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of 12 x 12 with a bright spot on a dim ground: its place, brightness and width."""
    place = 1.6 * torch.rand(rows, 2, generator=generator) - 0.8
    bright, width = torch.rand(2, rows, 1, generator=generator)
    axis = torch.linspace(-1, 1, 12)
    gap = (axis[:, None] - place[:, :1, None]) ** 2 + (axis - place[:, 1:, None]) ** 2
    ground = 0.2 * torch.rand(rows, 12, 12, generator=generator)
    spot = (0.3 + 0.5 * bright[..., None]) * torch.exp(-gap / (0.05 + 0.1 * width[..., None]))
    return (ground + spot)[:, None], torch.cat([place, bright, width], 1)


def signals(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of 10 steps with 8 numbers, and what four gated integrators hold at the end."""
    x = torch.randn(rows, 10, 8, generator=generator)
    held = torch.zeros(rows, 4)
    for now in x.unbind(1):
        held = 0.8 * held + 0.5 * torch.sigmoid(2 * now[:, :4]) * now[:, 4:]
    return x, held


def retrieval(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """12 tokens of 8 numbers: the value of the token whose key is most like the first one's."""
    x = torch.randn(rows, 12, 8, generator=generator)
    match = torch.softmax(4 * torch.einsum("ri,rti->rt", x[:, 0, :4], x[:, 1:, :4]), 1)
    return x, torch.einsum("rt,rti->ri", match, x[:, 1:, 4:])


def clouds(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """40 points in an ellipsoid, and its three half-axes."""
    axes = 0.5 + torch.rand(rows, 3, generator=generator)
    points = F.normalize(torch.randn(rows, 40, 3, generator=generator), dim=2)
    radius = torch.rand(rows, 40, 1, generator=generator) ** (1 / 3)
    return axes[:, None] * points * radius, axes


def readings(reduce: Callable[[Tensor], Tensor]) -> Task:
    """99 readings of three quantities, each with a gain and an offset of its own."""

    def task(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        level = torch.randn(rows, 3, 1, generator=generator)
        x = level + torch.randn(rows, 3, 33, generator=generator)
        fixed = torch.Generator().manual_seed(103)
        gain = 0.7 + 0.6 * torch.rand(3, 33, generator=fixed)
        offset = 0.3 * torch.randn(3, 33, generator=fixed)
        return x.flatten(1), reduce(gain * x + offset)

    return task


def instances(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """24 instances of 4 numbers, and the average of the five largest of three scores."""
    x = torch.randn(rows, 24, 4, generator=generator)
    scores = [x[..., 0] * x[..., 1], torch.sin(2 * x[..., 2]) + x[..., 3], x[..., 0] + x[..., 3]]
    return x, largest(torch.stack(scores, 1))


def largest(scores: Tensor) -> Tensor:
    """The average of the five largest along the last axis."""
    return scores.topk(5, -1).values.mean(-1)


# Networks


def mlp(activation: type[nn.Module], inputs: int = INPUTS, outputs: int = 3) -> nn.Sequential:
    hidden = (nn.Linear(inputs, 64), activation(), nn.Linear(64, 64), activation())
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


class Head(nn.Module):
    """A perceptron and a function of what it returns."""

    def __init__(self, outputs: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = mlp(nn.Tanh, outputs=outputs), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))


def ascending(x: Tensor) -> Tensor:
    return x.sort(1).values


def angles(x: Tensor) -> Tensor:
    return torch.atan2(x[:, :3], x[:, 3:])


def angle_loss(output: Tensor, target: Tensor) -> Tensor:
    return (1 - torch.cos(output - target)).mean()


class Sine(nn.Module):
    """Sitzmann et al. 2020: sines in place of rectifiers, of frequency 10 and then 30."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, 64), nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)
        nn.init.uniform_(self.first.weight, -1 / INPUTS, 1 / INPUTS)
        bound = math.sqrt(6 / 64) / 30
        nn.init.uniform_(self.second.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(30 * self.second(torch.sin(10 * self.first(x)))))


class Readings(nn.Module):
    """A gain and an offset for every reading, then one number for each of three quantities."""

    def __init__(self, reduce: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gain, self.offset = nn.Parameter(torch.ones(3, 33)), nn.Parameter(torch.zeros(3, 33))
        self.reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.gain * x.unflatten(1, (3, 33)) + self.offset)


def maximum(x: Tensor) -> Tensor:
    return x.amax(-1)


def median(x: Tensor) -> Tensor:
    return x.median(-1).values


class Instances(nn.Module):
    """The same perceptron scores every instance; the best five count."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return largest(self.score(x).transpose(1, 2))


class Experts(nn.Module):
    """Four perceptrons and a gate; with `hard` the gate picks one of them after training."""

    def __init__(self, *, hard: bool) -> None:
        super().__init__()
        self.gate, self.hard = nn.Linear(INPUTS, 4), hard
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(INPUTS, 24), nn.ReLU(), nn.Linear(24, 3)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        values = torch.stack([expert(x) for expert in self.experts], 1)
        if self.hard and not self.training:
            return values[torch.arange(len(x)), scores.argmax(1)]
        return torch.einsum("rk,rko->ro", torch.softmax(4 * scores, 1), values)


class Distances(nn.Module):
    """Distances of an embedding to three places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(INPUTS, 8)
        self.places = nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (self.embedding(x)[:, None] - self.places).norm(dim=2)


class RadialBasis(nn.Module):
    """Gaussian bumps around centers, as the mean of a Gaussian process is."""

    def __init__(self, inputs: int = INPUTS, centers: int = 600) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(centers, inputs))
        self.last = nn.Linear(centers, 3, bias=False)

    def kernel(self, x: Tensor) -> Tensor:  # (rows, centers)
        squares = (
            x.square().sum(1, keepdim=True) - 2 * x @ self.centers.T + self.centers.square().sum(1)
        )
        return torch.exp(-squares / (2 * x.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.kernel(x))


def gaussian_process(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The mean of a Gaussian process that has seen some examples, which are its centers."""
    assert isinstance(model, RadialBasis)
    count = len(model.centers)
    with torch.no_grad():
        model.centers.copy_(x[:count])
        matrix = model.kernel(x[:count]).double() + 0.01 * torch.eye(count)
        model.last.weight.copy_(torch.linalg.solve(matrix, y[:count].double()).T)
    return model.state_dict()


class Gated(nn.Module):
    """One recurrent layer of 24 units, and a linear layer on what it ends with."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer, self.head = layer(8, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class SharpAttention(nn.Module):
    """One head whose scores are four times the usual ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = 4 * query @ key.transpose(1, 2) / math.sqrt(key.shape[2])
        return self.out(torch.softmax(scores, 2) @ value)


class Encoder(nn.Module):
    """Two transformer blocks of width 24 with sharp attention; the first token's output counts."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, width)
        self.position = nn.Parameter(torch.randn(1, 12, width) / 5)
        self.blocks = nn.Sequential(EncoderBlock(width, 1), EncoderBlock(width, 1))
        for block in self.blocks:
            block.attention = SharpAttention(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x) + self.position)[:, 0])


class PointNet(nn.Module):
    """Qi et al. 2017: the same perceptron for every point, a maximum over points, another one."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 48), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).amax(1))


class Residual(nn.Module):
    """Two convolutions with batch norms beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


def residual() -> nn.Module:
    first = (nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
    last = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12 * 9, 4))
    return nn.Sequential(*first, Residual(12), Residual(12), *last)


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(12 * 9, 32), nn.ReLU(), nn.Linear(32, 4)),
    )


def pooled() -> nn.Module:
    """Maxima over 3 x 3 pixels and then over the whole image."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3)),
        *(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
    )


_PIXELS = (0.008, 0.03, 0.1)
_POINTS = (0.01, 0.03, 0.1)
KINDS = {
    "MLP, ReLU": Kind(lambda: mlp(nn.ReLU), smooth()),
    "MLP, tanh": Kind(lambda: mlp(nn.Tanh), smooth()),
    "MLP, 24 inputs": Kind(lambda: mlp(nn.ReLU, 24), smooth(24)),
    "MLP, single index": Kind(lambda: mlp(nn.ReLU), on_directions(single_index)),
    "CNN": Kind(convolutional, spots, _PIXELS, 24, epochs=12),
    "CNN, global maximum": Kind(pooled, spots, _PIXELS, 24, epochs=12),
    "residual CNN": Kind(residual, spots, _PIXELS, 24, epochs=12),
    "LSTM": Kind(lambda: Gated(nn.LSTM), signals, rows=24, epochs=12),
    "GRU": Kind(lambda: Gated(nn.GRU), signals, rows=24, epochs=12),
    "transformer, sharp": Kind(Encoder, retrieval, rows=24, epochs=12),
    "PointNet": Kind(PointNet, clouds, _POINTS),
    "maximum": Kind(lambda: Readings(maximum), readings(maximum)),
    "median": Kind(lambda: Readings(median), readings(median)),
    "five largest": Kind(Instances, instances),
    "exp head": Kind(lambda: Head(3, torch.exp), on_directions(exponential)),
    "sine network": Kind(Sine, on_directions(waves)),
    "atan2 head": Kind(lambda: Head(6, angles), on_directions(heading), loss=angle_loss),
    "experts, hard": Kind(lambda: Experts(hard=True), on_directions(regions)),
    "experts, soft": Kind(lambda: Experts(hard=False), on_directions(regions)),
    "sorting": Kind(
        lambda: Head(4, ascending), on_directions(lambda u: ascending(u[:, :4])), rows=24
    ),
    "classifier, logits": Kind(
        lambda: mlp(nn.ReLU, outputs=4), on_directions(classes), rows=24, loss=F.cross_entropy
    ),
    "distances": Kind(Distances, on_directions(distances)),
    "RBF network": Kind(RadialBasis, on_directions(gentle), fit=gaussian_process),
}
