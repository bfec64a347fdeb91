"""What a notebook shows: one line that a person wants to read, and no tensors in full."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import howsure as hs
from howsure.auditing.measures import Estimate
from howsure.auditing.result import Audit, Recommendation
from howsure.fit import Fit
from howsure.methods import METHODS
from howsure.noise import CameraFit, Identified
from howsure.prediction import Budget


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def fit_with(rate):
    return Fit((0.1,), (1.0,), (0.1,), rate, 0.04, "gaussian", 50, 200, best_nll=-1.25)


@dataclass(frozen=True, eq=False)
class OwnNoise(hs.noise.Noise):
    table: Tensor

    def var_at(self, x):
        return self.table


MEAN, VAR = torch.zeros(8, 2), torch.tensor([0.0004, 0.0121]).expand(8, 2)
CHANNELS = torch.tensor([0.2, 0.3, 0.4])
LINES = {
    "Uncertain(Sequential, auto)": lambda: hs.Uncertain(net()),
    "Uncertain(Sequential, noise Constant(var=0.01), adf, rate 0.1)": lambda: hs.Uncertain(
        net(), 0.01, "adf", rate=0.1
    ),
    "Uncertain(Sequential, noise {a: Constant(var=0.01), b: None}, auto, rate 0.1 to 0.2)": (
        lambda: hs.Uncertain(net(), {"a": hs.noise.std(0.1), "b": None}, rate=[0.1, 0.2])
    ),
    "Ensemble(2 members, Uncertain(Sequential, auto) first)": lambda: hs.Ensemble([net(), net()]),
    "Method(gradients)": lambda: METHODS["gradients"],
    "Prediction(8 x 2, gradients, std 0.02 to 0.11)": lambda: hs.Prediction(
        MEAN, VAR, 0 * VAR, method="gradients"
    ),
    "Prediction(8 x 2, 8 x 2, std 0.02 to 0.11)": lambda: hs.Prediction(
        {"a": MEAN, "b": MEAN}, {"a": VAR, "b": VAR}, {"a": 0 * VAR, "b": 0 * VAR}
    ),
    "Prediction(0 x 2, std unknown)": lambda: hs.Prediction(MEAN[:0], VAR[:0], VAR[:0]),
    "Constant(var=[3 values, 0.2 to 0.4])": lambda: hs.noise.variance(CHANNELS),
    "OwnNoise(table=[3 values, 0.2 to 0.4])": lambda: OwnNoise(CHANNELS),
    "Sum(noises=(Constant(var=0.01), Constant(var=0.04)))": lambda: (
        hs.noise.std(0.1) + hs.noise.std(0.2)
    ),
    "Identified(Constant(var=0.01), standard error 0.002)": lambda: Identified(
        hs.noise.std(0.1), 0.002
    ),
    "CameraFit(PoissonGaussian(gain=0.1, read_std=2, black_level=0), rejected 0.05)": (
        lambda: CameraFit(hs.noise.poisson_gaussian(0.1, 2.0), 0.1, 0.1, 0.05)
    ),
    "Fit(rate 0.1, residual_var 0.04, NLL -1.25, 200 inputs)": lambda: fit_with(0.1),
    "Fit(rate 0.1 to 0.3, residual_var 0.04, NLL -1.25, 200 inputs)": lambda: fit_with((0.1, 0.3)),
    "Fit(rate none, residual_var 0.04, NLL -1.25, 200 inputs)": lambda: fit_with(None),
    "Budget(d 40 %, c 30 %, b 20 %, 1 more)": lambda: Budget(
        tuple("abcd"), ("input",) * 4, torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1)
    ),
    "Gate(std up to 0.2)": lambda: hs.Gate(0.2),
    "Gate(variance up to [3 values, 0.2 to 0.4], each output by itself)": lambda: hs.Gate(
        CHANNELS, (3,), "variance", joint=False
    ),
    'Audit(use method="adf", samples=20; 0 methods on 16 inputs, 500 passes)': lambda: Audit(
        (),
        (),
        (),
        Estimate(0, 0, 0),
        Recommendation("adf", {"samples": 20}, "it is close"),
        (),
        500,
        16,
        2,
        0.1,
        3.0,
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_repr_is_one_line(line):
    assert repr(LINES[line]()) == line


def test_a_calibrated_prediction_says_so():
    sure, data = hs.Uncertain(net(), 0.01, "adf"), [(torch.rand(64, 3), torch.rand(64, 2))]
    sure.calibrate(data, "conformal")
    assert repr(sure(torch.rand(4, 3))).startswith("CalibratedPrediction(4 x 2, adf, std ")
