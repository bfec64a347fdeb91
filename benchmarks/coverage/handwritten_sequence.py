"""Sequences: temporal convolutions (Bai 2018), WaveNet-like gates (van den Oord 2016), LSTM."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


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
