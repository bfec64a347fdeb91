"""Models as users have them, and inputs for each."""

import dataclasses
from collections import OrderedDict

import torch
from torch import nn

ROWS = 96

generator = torch.Generator().manual_seed(0)

X = torch.randn(ROWS, 4, generator=generator)

Y = 0.3 * torch.randn(ROWS, 2, generator=generator)

STEPS = torch.randn(ROWS, 5, 4, generator=generator)

STATE = torch.randn(1, ROWS, 8, generator=generator)

TOKENS = torch.randint(0, 10, (ROWS, 5), generator=generator)


def mlp(outputs=2):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs)).eval()


class Returns(nn.Module):
    """A network whose output is packed by a function."""

    def __init__(self, packed):
        super().__init__()
        self.net, self.packed = mlp(), packed

    def forward(self, x):
        return self.packed(self.net(x), x)


class ModelOutput(OrderedDict):
    """As in `transformers`: by key, index and attribute, of a class that torch does not know."""

    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]


@dataclasses.dataclass
class Pose:
    pose: torch.Tensor
    features: torch.Tensor


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, image, motion):
        return self.out(torch.tanh(self.a(image) + self.b(motion)))


class Recurrent(nn.Module):
    """A policy with a hidden state (1, batch, units) as input and output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.gru, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, h):
        y, h = self.gru(x, h)
        return self.out(y[:, -1]), h


class Tokens(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(4)
        self.words, self.net = nn.Embedding(10, width), mlp()

    def forward(self, tokens, x=0.0):
        return self.net(self.words(tokens).mean(1) + x)


class TimeFirst(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):  # (time, batch, 4)
        return self.net(x)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)


class Lightning(nn.Module):
    """What a module of Lightning has besides: a trainer, steps, properties."""

    def __init__(self):
        super().__init__()
        self.net, self.trainer, self.example_input_array = mlp(), None, X[:1]

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        raise AssertionError("nobody trains")

    @property
    def device(self):
        return torch.device("cpu")


class Policy(nn.Module):
    """As in Stable-Baselines3: a distribution over actions."""

    def __init__(self):
        super().__init__()
        self.net, self.log_std = mlp(), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return torch.distributions.Normal(self.net(x), self.log_std.exp())


def rows(x, first, last):
    """Some rows of an input: the hidden state has them on axis 1."""
    if isinstance(x, dict):
        return {name: each[first:last] for name, each in x.items()}
    if isinstance(x, tuple):
        return tuple(rows(each, first, last) for each in x)
    return x[:, first:last] if x.shape[0] == 1 else x[first:last]


def called(sure, x):
    if isinstance(x, dict):
        return sure(**x)
    return sure(*x) if isinstance(x, tuple) else sure(x)


def held_out(x, y):
    return [(rows(x, i, i + 32), y[i : i + 32]) for i in range(0, ROWS, 32)]
