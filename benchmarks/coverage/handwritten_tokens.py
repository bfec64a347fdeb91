"""Token mixers: Swin-like windows, ConvNeXt-like blocks, MLP-Mixer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
