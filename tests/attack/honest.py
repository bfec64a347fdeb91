"""Honest `.pt2` files: networks of every kind, exported with a batch of any size."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class Branching(nn.Module):
    """Subgraphs, a constant, an expanded buffer, writing in place, and a dict as output."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.register_buffer("shift", torch.ones(1).expand(4))
        self.scale = torch.tensor([2.0])

    def forward(self, x):
        with torch.no_grad():
            hidden = self.first(x)
        hidden = torch.cond(x.sum() > 0, lambda h: h + 1, lambda h: h - 1, (hidden,))
        return {"out": (hidden + self.shift).relu_() * self.scale}


class Halves(nn.Module):
    """Sizes that are divided and compared, and so a guard."""

    def forward(self, x, y):
        return torch.cat([x, y])[: x.shape[0] // 2 + 1]


ANY = torch.export.Dim.AUTO


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(4, 2),
    )


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.LayerNorm(8), nn.Flatten(), nn.Linear(40, 1))


# Network, and the shapes of its inputs.
ZOO = {
    "mlp": (mlp, [(4, 3)]),
    "cnn": (cnn, [(4, 3, 8, 8)]),
    "gru": (Recurrent, [(4, 5, 3)]),
    "transformer": (transformer, [(4, 5, 8)]),
    "branching": (Branching, [(4, 3)]),
    "halves": (Halves, [(4, 3), (6, 3)]),
}


def exported(name, path, **options):
    """Writes a network of the zoo; the network and an example."""
    make, shapes = ZOO[name]
    net, x = seeded(make), tuple(torch.rand(shape) for shape in shapes)
    options.setdefault("dynamic_shapes", tuple({0: ANY} for _ in x))
    torch.export.save(torch.export.export(net, x, strict=False, **options), path)
    return net, x
