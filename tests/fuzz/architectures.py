"""Random small networks for images, sequences and rows; every draw has a shape that fits."""

import torch
from hypothesis import strategies as st
from torch import nn

from nets import randomize_statistics

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
    "none": nn.Identity,
}
OUTPUTS = 3


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Joined(nn.Module):
    """Two branches side by side."""

    def __init__(self, left, right, dim):
        super().__init__()
        self.left, self.right, self.dim = left, right, dim

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], self.dim)


class LastStep(nn.Module):
    """A recurrent layer's output after the last step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        return self.cell(x)[0][:, -1]


class SelfAttention(nn.Module):
    """x attends to itself, with a residual sum."""

    def __init__(self, width):
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        return x + self.attend(x, x, x, need_weights=False)[0]


def activation(draw):
    return ACTIVATIONS[draw(st.sampled_from(sorted(ACTIVATIONS)))]()


def image_layers(draw, channels, size):
    """One to three blocks of convolution, norm, activation, pool; then flat features."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        wide = draw(st.sampled_from([4, 6]))
        kind = draw(st.sampled_from(["plain", "residual", "joined", "upsampled"]))
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), activation(draw)]
        if kind == "residual":
            inner = nn.Conv2d(wide, wide, 3, padding=1, groups=2), activation(draw)
            layers.append(Residual(nn.Sequential(*inner)))
        if kind == "joined":
            layers.append(Joined(nn.Identity(), nn.Conv2d(wide, 2, 1), 1))
            wide += 2
        if kind == "upsampled" and size <= 4:
            layers.append(nn.ConvTranspose2d(wide, wide, 2, stride=2))
            size *= 2
        pool = draw(st.sampled_from([None, nn.MaxPool2d(2), nn.AvgPool2d(2)]))
        if pool is not None and size >= 4:
            layers.append(pool)
            size //= 2
        channels = wide
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()], [nn.Flatten()]
    tail = draw(st.sampled_from([0, 1]))
    width = channels if tail == 0 else channels * size * size
    return [*layers, *flat[tail]], width


def sequence_layers(draw, width):
    """Attention or a recurrent layer, then features."""
    kind = draw(st.sampled_from(["attention", "lstm", "gru", "conv"]))
    if kind == "attention":
        return [SelfAttention(width), nn.LayerNorm(width), nn.Flatten()], None
    if kind == "conv":
        return [nn.Conv1d(5, 4, 1), activation(draw), nn.Flatten()], None
    cell = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, 6, batch_first=True)
    return [LastStep(cell)], 6


def row_layers(draw, width):
    """One to three dense blocks."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        wide = draw(st.sampled_from([5, 8]))
        layers += [nn.Linear(width, wide), activation(draw)]
        if draw(st.booleans()):
            layers.append(Residual(nn.Sequential(nn.Linear(wide, wide), activation(draw))))
        norm = draw(st.sampled_from([None, nn.LayerNorm, nn.BatchNorm1d]))
        if norm is not None:
            layers.append(norm(wide))
        width = wide
    return layers, width


@st.composite
def networks(draw):
    """(network in eval mode, a batch for it), from a drawn seed and a drawn dtype."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    kind = draw(st.sampled_from(["rows", "images", "sequences"]))
    if kind == "rows":
        x = torch.randn(draw(st.integers(1, 3)), 4)
        layers, width = row_layers(draw, 4)
    elif kind == "images":
        size, channels = draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 3]))
        x = torch.rand(2, channels, size, size)
        layers, width = image_layers(draw, channels, size)
    else:
        x = torch.randn(2, 5, 4)
        layers, width = sequence_layers(draw, 4)
    body = nn.Sequential(*layers)
    if width is None:
        width = body.eval()(x).shape[1]
    end = draw(st.sampled_from([nn.Identity(), nn.Softmax(1), nn.Sigmoid()]))
    model = nn.Sequential(body, nn.Linear(width, OUTPUTS), end)
    return randomize_statistics(model).to(dtype), x.to(dtype)
