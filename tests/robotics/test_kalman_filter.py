"""A filter of filterpy with a network's covariance is consistent; with another it is not."""

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs

pytest.importorskip("filterpy")

from filterpy.kalman import KalmanFilter

STEPS, NOISE_STD = 500, 0.3
DRIVE = 0.1  # std of a random step of the position


def read_by_a_network():
    """True positions, what a linear network reads of noisy sensors, and the prediction."""
    random = torch.Generator().manual_seed(0)
    path = (DRIVE * torch.randn(STEPS, 2, generator=random)).cumsum(0)
    network = nn.Linear(3, 2, bias=False).requires_grad_(False).eval()
    # Three sensors, of which the network's outputs share one: their errors are correlated.
    network.weight.copy_(torch.tensor([[1.0, 0.0, 0.8], [0.0, 1.0, 0.8]]))
    sensors = torch.cat([path, torch.zeros(STEPS, 1)], 1)
    sensors = sensors + NOISE_STD * torch.randn(STEPS, 3, generator=random)
    return path.double(), hs.Uncertain(network, hs.noise.std(NOISE_STD), "gradients")(sensors)


def filtered(prediction, path, scale=1.0):
    """The mean NIS and the mean NEES."""
    kalman = KalmanFilter(dim_x=2, dim_z=2)
    kalman.F = kalman.H = np.eye(2)
    kalman.Q, kalman.P = DRIVE**2 * np.eye(2), DRIVE**2 * np.eye(2)
    innovations, spreads, states, covariances = [], [], [], []
    for row in range(STEPS):
        # In the filter's order, y before x, as its state is here.
        seen = hs.robotics.measurement(prediction, ("x", "y"), row=row).ordered(("y", "x"))
        kalman.predict()
        kalman.update(seen.mean, R=scale * seen.covariance)
        for kept, new in (
            (innovations, kalman.y.ravel()),
            (spreads, kalman.S),
            (states, kalman.x.ravel()),
            (covariances, kalman.P),
        ):
            kept.append(torch.tensor(new.copy()))
    nis = hs.metrics.nis(torch.stack(innovations), torch.stack(spreads))
    nees = hs.metrics.nees(torch.stack(states), torch.stack(covariances), path.flip(1))
    return nis.item(), nees.item()


def test_a_filter_is_consistent_with_the_networks_covariance_alone():
    path, prediction = read_by_a_network()
    # 99.9 %, so that chance seldom decides; innovations of a right filter are independent.
    low, high = hs.metrics.chi_square_band(2, count=STEPS, level=0.999)
    nis, nees = filtered(prediction, path)
    assert low < nis < high and nees == pytest.approx(2, rel=0.25)
    assert filtered(prediction, path, 0.5)[0] > high
    assert filtered(prediction, path, 2.0)[0] < low
