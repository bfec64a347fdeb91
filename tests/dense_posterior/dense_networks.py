"""Networks with a number at every pixel, and images for them."""

import torch
from torch import nn
from torch.nn import functional as F

SIDE = 12


class Dense(nn.Module):
    """A trunk and a head of 1 x 1, with what users put behind it."""

    def __init__(self, outputs=1, finish=None, channels=6):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.Tanh())
        self.wide = nn.Conv2d(5, channels, 3, padding=1)
        self.head = nn.Conv2d(channels, outputs, 1)
        self.finish = finish
        self.eval()

    def forward(self, image):
        out = self.head(torch.relu(self.wide(self.trunk(image))))
        return out if self.finish is None else self.finish(out)


class TwoHeads(Dense):
    """A dict of two maps, the second from a head that is called later."""

    def __init__(self):
        super().__init__()
        self.other = nn.Conv2d(6, 1, 1)

    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return {"depth": self.head(h), "height": self.other(h), "count": 2}


def images(count, seed):
    return torch.randn(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def trained():
    """A network that smooths images, which is what the targets are."""
    net = Dense(channels=8).train()
    step, (x, y) = torch.optim.Adam(net.parameters(), 1e-2), data(200, 0)
    for _ in range(150):
        step.zero_grad()
        F.mse_loss(net(x), y).backward()
        step.step()
    return net.eval().requires_grad_(False)


def data(count, seed):
    x = images(count, seed)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 999))
    return x, F.avg_pool2d(x, 3, 1, 1).tanh() + 0.1 * noise
