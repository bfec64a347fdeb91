"""Small networks that the benchmarks train themselves, once: the weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench import cached
from torch import Tensor, nn
from torch.nn import functional as F

from howsure_lab.experiments.recognition.resnets import MEAN, STD, load_pretrained


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SmallViT(nn.Module):
    """ViT-Tiny with half its depth: 6 blocks of width 192, patches of 16 (Dosovitskiy 2021)."""

    def __init__(self, outputs=1, size=224, width=192, depth=6, heads=3, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Perceptron(nn.Sequential):
    """Three hidden layers of 256 units."""

    def __init__(self, inputs=16, outputs=1, width=256):
        layers = [nn.Linear(inputs, width), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Linear(width, width), nn.ReLU()]
        super().__init__(*layers, nn.Linear(width, outputs))


class Recurrent(nn.Module):
    """Two LSTM layers of 64 units, and a linear layer on what they end with."""

    def __init__(self, inputs=6, outputs=1, width=64):
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, 2, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def cifar_resnet(folder: Path, depth: int, units: str | None = None) -> nn.Module:
    """The trained ResNet-20 or ResNet-32 from `folder`, with dropout of elements or channels."""
    kinds = {None: nn.Identity, "element": nn.Dropout, "channel": nn.Dropout2d}
    return load_pretrained(next(folder.glob(f"resnet{depth}-*.th")), depth, kinds[units])


Loss = Callable[[Tensor, Tensor], Tensor]
STEPS, FEATURES, NUMBERS = 20, 6, 24
_BATCH = 64
_LARGEST_SHIFT = 4  # pixels


def vit(data: Path) -> nn.Module:
    """Four blocks of width 96 on patches of 4 x 4 pixels; ten classes."""

    def examples() -> tuple[Tensor, Tensor]:
        with np.load(data / "cifar10/cifar10_subset.npz") as found:
            return normalized(found["x_train"]), torch.from_numpy(found["y_train"]).long().flatten()

    torch.manual_seed(0)
    model = SmallViT(10, 32, 96, 4, 3, patch=4)
    return kept("ViT, CIFAR", model, examples, 12, F.cross_entropy, _shifted)


def normalized(pixels: np.ndarray) -> Tensor:
    """Images of bytes as the networks for CIFAR take them."""
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def _shifted(x: Tensor) -> Tensor:
    """The batch moved by some pixels, and mirrored half of the time."""
    shifts = torch.randint(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, (2,)).tolist()
    x = x.roll(shifts, (2, 3))
    return x.flip(3) if torch.rand(()) < 0.5 else x


def lstm() -> nn.Module:
    """Two layers of 64 units on 20 steps of 6 numbers; one output."""

    def examples() -> tuple[Tensor, Tensor]:
        x = sequences(4000, seed=1)
        return x, _at_the_end(x)

    torch.manual_seed(0)
    return kept("LSTM", Recurrent(FEATURES, 1, 64), examples, 30)


def mlp() -> nn.Module:
    """Three hidden layers of 256 units on 24 numbers; one output."""
    torch.manual_seed(0)
    return kept("MLP", Perceptron(NUMBERS, 1), lambda: regression(4000, seed=1), 60)


def cnn() -> nn.Module:
    """Two convolutions and two linear layers, without norms, on 16 x 16 pixels; one output."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1)),
    )
    return kept("CNN, spots", model, lambda: spots(4000, seed=1), 20)


def spots(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images with a bright spot on a dim, textured ground, and the spot's column from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    place = 1.6 * torch.rand(count, 2, generator=generator) - 0.8
    bright = 0.4 + 0.4 * torch.rand(count, 1, 1, generator=generator)
    axis = torch.linspace(-1, 1, 16)
    gap = (axis[:, None] - place[:, :1, None]) ** 2 + (axis - place[:, 1:, None]) ** 2
    ground = 0.2 * torch.rand(count, 16, 16, generator=generator)
    return (ground + bright * torch.exp(-gap / 0.05))[:, None], place[:, 1:]


def sequences(count: int, seed: int = 0) -> Tensor:
    """Slow signals with noise."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(count, STEPS, FEATURES, generator=generator)
    slow = steps.cumsum(1) / torch.arange(1, STEPS + 1).sqrt()[:, None]
    return (slow + 0.5 * torch.randn(slow.shape, generator=generator)) / 1.25**0.5


def _at_the_end(x: Tensor) -> Tensor:
    """What a leaky integrator that one signal gates holds at the end."""
    held = torch.zeros(len(x))
    for now in x.unbind(1):
        gate = torch.sigmoid(2 * now[:, 0])
        held = 0.9 * held + 0.3 * gate * (now[:, 1] + now[:, 2] * now[:, 3])
    return (held + torch.tanh(x[:, -1, 4]) * x[:, -1, 5])[:, None]


def vectors(count: int, seed: int = 0) -> Tensor:
    """Independent normal numbers."""
    return torch.randn(count, NUMBERS, generator=torch.Generator().manual_seed(seed))


def regression(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors and what the perceptron was trained to say of them."""
    x = vectors(count, seed)
    return x, _of_vectors(x)


def _of_vectors(x: Tensor) -> Tensor:
    """Sines, products and kinks of some numbers, and a weighted sum of all."""
    curved = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3].abs()
    sharp = torch.relu(x[:, 4] + x[:, 5]) - torch.tanh(2 * x[:, 6]) * x[:, 7]
    line = x @ torch.linspace(-0.3, 0.3, x.shape[1])
    return (curved + sharp + line)[:, None]


def trained(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    epochs: int,
    change: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, Tensor]:
    """The weights after some epochs of AdamW with one cycle of its rate."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = epochs * -(-len(x) // _BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(_BATCH):
            optimizer.zero_grad()
            loss(model(change(x[rows])), y[rows]).backward()
            optimizer.step()
            rate.step()
    return model.state_dict()


def kept(
    name: str,
    model: nn.Module,
    examples: Callable[[], tuple[Tensor, Tensor]],
    epochs: int,
    loss: Loss = F.mse_loss,
    change: Callable[[Tensor], Tensor] = lambda x: x,
) -> nn.Module:
    """The model with the weights of this name; they are trained if they are not known."""
    weights = cached(
        f"{name}, {epochs} epochs", lambda: trained(model, *examples(), loss, epochs, change)
    )
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)
