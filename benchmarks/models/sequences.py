"""A small vision transformer, a perceptron and a recurrent network, written for the benchmarks."""

import torch
from torch import nn
from torch.nn import functional as F


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
