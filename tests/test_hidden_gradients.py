"""The check of gradients: networks with many kinks pass, and a part that is detached does not."""

import pytest
import torch
from torch import nn

import howsure as hs


class PartlyDetached(nn.Module):
    """Rectifiers and max pools, of whose output a share has no gradient."""

    def __init__(self, share):
        super().__init__()
        self.share = share
        layers = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        y = self.layers(x)
        return (1 - self.share) * y + self.share * y.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_kinks_are_no_hidden_gradient_and_a_detached_part_is(seed, dtype):
    torch.manual_seed(seed)
    methods = []
    for share in (0.0, 0.3, 1.0):
        model = PartlyDetached(share).to(dtype).eval()
        x = torch.rand(4, 1, 16, 16, dtype=dtype)
        methods.append(hs.Uncertain(model, noise=0.01, method="gradients")(x).method)
    assert methods == ["gradients", *["noise_sampling"] * 2]
