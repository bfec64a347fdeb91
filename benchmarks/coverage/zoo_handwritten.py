"""Small networks as people write them by hand: none comes from a library."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import NOISE_VAR, Case, Setup, noisy_input
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Two levels; one goes up by a transposed convolution, one by bilinear resizing."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = _double(3, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.raise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2, self.up1 = _double(4 * width, 2 * width), _double(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        y = self.up2(torch.cat([second, self.raise2(bottom)], dim=1))
        y = F.interpolate(y, size=first.shape[-2:], mode="bilinear", align_corners=False)
        return F.log_softmax(self.head(self.up1(torch.cat([first, y], dim=1))), dim=1)


class FlowNetS(nn.Module):
    """Stacked image pair in, flow at three scales out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.conv1 = nn.Conv2d(6, w, 7, 2, 3)
        self.conv2 = nn.Conv2d(w, 2 * w, 5, 2, 2)
        self.conv3 = nn.Conv2d(2 * w, 4 * w, 5, 2, 2)
        self.predict3 = nn.Conv2d(4 * w, 2, 3, padding=1)
        self.deconv2 = nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1)
        self.upflow3 = nn.ConvTranspose2d(2, 2, 4, 2, 1, bias=False)
        self.predict2 = nn.Conv2d(4 * w + 2, 2, 3, padding=1)
        self.deconv1 = nn.ConvTranspose2d(4 * w + 2, w, 4, 2, 1)
        self.upflow2 = nn.ConvTranspose2d(2, 2, 4, 2, 1, bias=False)
        self.predict1 = nn.Conv2d(2 * w + 2, 2, 3, padding=1)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = F.leaky_relu(self.conv1(pair), 0.1, inplace=True)
        two = F.leaky_relu(self.conv2(one), 0.1)
        three = F.leaky_relu(self.conv3(two), 0.1)
        flow3 = self.predict3(three)
        up2 = F.leaky_relu(self.deconv2(three), 0.1)
        joined2 = torch.cat((two, up2, self.upflow3(flow3)), 1)
        flow2 = self.predict2(joined2)
        up1 = F.leaky_relu(self.deconv1(joined2), 0.1)
        flow1 = self.predict1(torch.cat((one, up1, self.upflow2(flow2)), 1))
        return 20.0 * flow1, 20.0 * flow2, 20.0 * flow3


class TemporalBlock(nn.Module):
    """Two causal convolutions, weight-normalized, chopped to the input's length."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        options = {"padding": self.pad, "dilation": dilation}
        self.conv1 = weight_norm(nn.Conv1d(inputs, outputs, 3, **options))
        self.conv2 = weight_norm(nn.Conv1d(outputs, outputs, 3, **options))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(F.relu(self.conv1(x)[:, :, : -self.pad].contiguous()))
        y = self.dropout(F.relu(self.conv2(y)[:, :, : -self.pad].contiguous()))
        return F.relu(y + self.skip(x))


class TemporalConvNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [4, width, width, width]
        pairs = enumerate(itertools.pairwise(sizes))
        self.blocks = nn.Sequential(*(TemporalBlock(a, b, 2**i) for i, (a, b) in pairs))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[..., -1])


class WaveNet(nn.Module):
    """Gated dilated convolutions with skip sums."""

    def __init__(self, width: int = 12, layers: int = 5) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.enter(x), 0
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            padded = F.pad(x, (gate.dilation[0], 0))
            filtered, opened = gate(padded).chunk(2, dim=1)
            residual, skip = mix(torch.tanh(filtered) * torch.sigmoid(opened)).chunk(2, dim=1)
            x, total = (x + residual) * 0.5**0.5, total + skip
        return self.leave(total)


class Seq2Seq(nn.Module):
    """Bidirectional LSTM encoder, attention, LSTM-cell decoder that feeds itself."""

    def __init__(self, width: int = 16, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.encoder = nn.LSTM(5, width, num_layers=2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)
        self.cell = nn.LSTMCell(5 + 2 * width, width)
        self.query = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        memory, (hidden, _) = self.encoder(x)
        h = torch.tanh(self.bridge(torch.cat([hidden[-2], hidden[-1]], dim=-1)))
        c, y, outputs = torch.zeros_like(h), x[:, -1], []
        for _ in range(self.steps):
            scores = torch.bmm(memory, self.query(h).unsqueeze(2)).squeeze(2)
            weights = torch.softmax(scores, dim=1)
            context = (weights.unsqueeze(2) * memory).sum(dim=1)
            h, c = self.cell(torch.cat([y, context], dim=1), (h, c))
            y = self.out(h)
            outputs.append(y)
        return torch.stack(outputs, dim=1)


def _shared(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU())


class Alignment(nn.Module):
    """Predicts a k x k matrix that turns the points."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.points = nn.Sequential(_shared(k, 16), _shared(16, 32))
        self.matrix = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, k * k))

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.max(self.points(x), 2, keepdim=True)[0].view(-1, 32)
        identity = torch.eye(self.k, device=x.device).view(1, -1).repeat(x.size(0), 1)
        return (self.matrix(pooled) + identity).view(-1, self.k, self.k)


class PointNet(nn.Module):
    """Points (batch, 3, n) to class scores."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.align = Alignment(3)
        self.points = nn.Sequential(_shared(3, 16), _shared(16, 64))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.bmm(x.transpose(2, 1), self.align(x)).transpose(2, 1)
        pooled = self.points(turned).amax(dim=2)
        return F.log_softmax(self.out(self.head(pooled)), dim=1)


class GraphConv(nn.Module):
    """Three rounds of messages over the symmetrically normalized adjacency, then a mean."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(dim=-1).rsqrt()
        messages = degree[:, None] * adjacency * degree[None, :]
        for layer in self.layers:
            nodes = F.elu(messages @ layer(nodes))
        return self.out(torch.einsum("ij,bjc->bic", messages, nodes).mean(dim=1))


class WindowAttention(nn.Module):
    """Multi-head attention inside shifted windows, with a learned position bias."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, window**2, window**2))

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        qkv = self.qkv(y).reshape(-1, n * n, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5 + self.bias
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(-1, n * n, c)
        y = self.out(y).view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5)
        y = torch.roll(y.reshape(b, h, w, c), (self.shift, self.shift), dims=(1, 2))
        return x + y


class SwinLike(nn.Module):
    """Two windowed blocks, patch merging, two more."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Sequential(*(WindowAttention(width, 2, 4, s) for s in (0, 2)))
        self.merge = nn.Linear(4 * width, 2 * width, bias=False)
        self.second = nn.Sequential(*(WindowAttention(2 * width, 4, 4, s) for s in (0, 2)))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.embed(x).permute(0, 2, 3, 1))
        corners = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        x = self.second(self.merge(torch.cat(corners, dim=-1)))
        return self.head(x.mean(dim=(1, 2)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.mlp(y)).permute(0, 3, 1, 2)


class ConvNeXtLike(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.GroupNorm(1, width))
        self.blocks = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.head(self.norm(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class MLPMixer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(MixerBlock(16, width), MixerBlock(16, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


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
