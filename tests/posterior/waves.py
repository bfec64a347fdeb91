"""A network that has learned a wave on both sides of a gap, and data of it."""

import torch
from torch import nn


def trained(outputs=1, seed=0):
    """A small network that has learned a wave, on the left and on the right of a gap."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
    net = nn.Sequential(*net, nn.Linear(24, outputs))
    x, y = data(400, seed, outputs)
    step = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        step.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        step.step()
    return net.eval()


def data(count, seed, outputs=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 2, generator=generator) * 2 - 1
    x[:, 0] = x[:, 0] + 1.5 * x[:, 0].sign()
    wave = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:]
    y = torch.cat([wave * (k + 1) for k in range(outputs)], 1)
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)
