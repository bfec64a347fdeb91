"""A network that is too sure, and its temperature; tests read both and change neither."""

import pytest
import torch
from three_classes import blobs, fitted
from torch import nn
from torch.nn import functional as F


@pytest.fixture(scope="session")
def net():
    """Trained for far too long, so that it is too sure."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x, y = blobs(200, 0)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def sure(net):
    return fitted(net)
