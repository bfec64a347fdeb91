"""Small networks of many kinds, with inputs that they take."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, activation="gelu")
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(5, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


class Transposed(nn.Module):
    """Its features stand where the batch was, for a while."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(40, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x).T).T)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(80, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return {"pose": self.a(h), "twist": (self.b(h),)}


class Views(nn.Module):
    """Needs its images in the usual order of memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4 * 64, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).view(len(x), -1))


def zoo():
    """Name to network and a function from the batch size to inputs."""
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 16, 2),
    )
    nets = {
        "mlp": (nn.Sequential(nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 2)), (80,)),
        "cnn": (cnn, (2, 10, 10)),
        "views": (Views(), (2, 10, 10)),
        "attention": (Attention(), (8, 12)),
        "lstm": (Recurrent(nn.LSTM), (15, 5)),
        "gru": (Recurrent(nn.GRU), (15, 5)),
        "transposed 4": (Transposed(4), (40,)),
        "two outputs": (TwoOutputs(), (80,)),
    }
    return {name: (net.eval(), shape) for name, (net, shape) in nets.items()}


def inputs(shape, rows, seed=1):
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(seed))
