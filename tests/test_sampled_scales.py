"""The standard error of sampled stds at scales whose fourth powers single precision has not."""

import pytest
import torch
from torch import nn

import howsure as hs

X = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A small network whose outputs are in other units."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unit, self.layers = unit, nn.Sequential(nn.Linear(30, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.unit * self.layers(x)


@pytest.mark.parametrize("unit", [2.0**-46, 2.0**46])
@pytest.mark.parametrize(
    "options", [{"method": "noise_sampling", "noise": 0.01}, {"method": "mc_dropout", "rate": 0.1}]
)
def test_the_standard_error_is_that_of_the_same_network_in_other_units(unit, options):
    own, other = (hs.Uncertain(Scaled(u).eval(), **options)(X) for u in (1.0, unit))
    assert torch.allclose(other.std / unit, own.std, rtol=1e-5)
    assert torch.allclose(other.std_error / unit, own.std_error, rtol=1e-4)


def test_a_tolerance_is_not_reached_by_rounding_alone():
    p = hs.Uncertain(Scaled(2.0**-46).eval(), 0.01, "noise_sampling", samples=8, tolerance=0.05)(X)
    assert bool((0.01 * p.std < p.std_error).all()) and bool((p.std_error <= 0.05 * p.std).all())


class Signs(nn.Module):
    """Steps, of which some are close to an input and others far; and a constant."""

    def forward(self, x):
        return torch.stack([torch.sign(x[:, 0]), x[:, 1], torch.zeros(len(x))], 1)


@pytest.mark.parametrize("method", ["noise_sampling", "auto", "gradients"])
def test_a_std_of_0_by_samples_that_saw_no_step_has_a_note(method):
    x = torch.tensor([[0.05, 0.0], [0.9, 0.0], [0.9, 1.0]])
    p = hs.Uncertain(Signs().eval(), 0.01, method)(x)
    assert p.std[:, 0].gt(0).tolist() == [True, False, False]
    assert any("samples changed some outputs of 2 of 3 inputs" in note for note in p.notes)


@pytest.mark.parametrize("method", ["noise_sampling", "gradients"])
def test_constants_and_inputs_without_noise_have_no_note(method):
    steady = torch.tensor([[0.05, 0.0], [-0.05, 1.0]])
    for noise in (0.01, 0.0, hs.noise.std(torch.tensor([[0.1], [0.0]]))):
        notes = hs.Uncertain(Signs().eval(), noise, method)(steady).notes
        assert not any("samples changed" in note for note in notes)


@pytest.mark.parametrize("method", ["noise_sampling", "auto"])
def test_noise_that_is_lost_in_the_rounding_of_its_inputs_has_a_note(method):
    net, east = nn.Linear(1, 1).eval(), torch.tensor([[500_000.0], [6_000_000.0]])  # meters
    p = hs.Uncertain(net, hs.noise.std(0.1), method)(east)
    assert any("resolution of the inputs in float32" in note for note in p.notes)
    exact = hs.Uncertain(net.double(), hs.noise.std(0.1), method)(east.double())
    assert not any("resolution" in note for note in exact.notes)
    near = hs.Uncertain(net.float(), hs.noise.std(0.1), method)(east / 1000)
    assert not any("resolution" in note for note in near.notes)


def test_rows_that_are_single_numbers_may_stand_still():
    p = hs.Uncertain(nn.ReLU().eval(), 0.01, "noise_sampling")(torch.tensor([-10.0, 2.0, 3.0]))
    assert p.std[0] == 0 and bool((p.std[1:] > 0.05).all())
    assert any("None of 200 noisy samples" in note for note in p.notes)


def test_what_is_lost_in_rounding_is_a_matter_of_each_call():
    sure = hs.Uncertain(nn.Linear(3, 1).eval(), 1e-4, "noise_sampling")
    near, far = torch.zeros(2, 3), torch.full((2, 3), 6e6)
    for x, lost in ((near, False), (far, True), (near, False)):
        assert any("resolution" in note for note in sure(x).notes) == lost


def test_a_variance_below_single_precision_is_no_step():
    line = nn.Linear(3, 1, bias=False).eval()
    nn.init.constant_(line.weight, 1e-30)
    p = hs.Uncertain(line, 1e-4, "noise_sampling")(torch.zeros(2, 3))
    assert bool((p.std_error > 0).all()) and not any("None of" in note for note in p.notes)
