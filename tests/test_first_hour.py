"""What stopped new users of 0.2, where no other test has it."""

import importlib.util

import pytest
import torch
from torch import nn

import howsure as hs


def network(inputs: int = 3, outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def held_out(model: nn.Module, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    y = model(x)
    return [(x, y + 0.1 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))]


def test_the_mean_is_the_networks_own_output_before_and_after_fit():
    model, x = network(), torch.randn(60, 3)
    sure = hs.Uncertain(model, noise=0.25)
    before = sure(x)
    sure.fit(held_out(model, x), show_progress=False)
    after = sure(x)
    assert (before.method, after.method) == ("noise_sampling", "gradients")
    for p in (before, after):
        torch.testing.assert_close(p.mean, model(x))


def test_the_stated_noise_is_the_data_variance_before_and_after_fit():
    model, x = network(30), torch.randn(300, 30)
    sure = hs.Uncertain(model, noise=hs.noise.std(0.1), method="gradients")
    before = sure(x).data_var
    sure.fit(held_out(model, x), residual_var=0.0, show_progress=False)
    torch.testing.assert_close(sure(x).data_var, before, rtol=1e-3, atol=0)


class Coupled(nn.Module):
    """Rows that share a number by rounding alone, as those of a Gaussian process do."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.network, self.share = network(30), share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.network(x)
        return y + self.share * y.mean(0)


def test_rows_that_share_rounding_are_independent_and_others_are_not():
    x = torch.randn(8, 30)
    by_rounding = hs.Uncertain(Coupled(1e-9).eval(), 0.01, "gradients")(x)
    coupled = hs.Uncertain(Coupled(0.5).eval(), 0.01, "gradients")(x)
    assert not by_rounding.notes and by_rounding.method == "gradients"
    assert any("influence each other" in note for note in coupled.notes)


def test_notes_of_many_batches_stand_once():
    sure, x = hs.Uncertain(network(), noise=0.25), torch.randn(4, 3)
    assert sure.predict([x, x, x], show_progress=False).notes == sure(x).notes


class Policy(nn.Module):
    """A policy: a distribution over eight actions."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(100, 8)

    def forward(self, x: torch.Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Laplace(self.network(x), torch.ones(8))


def test_one_output_of_a_policy_counts_as_one():
    one = hs.Uncertain(Policy().eval(), hs.noise.std(0.1), output=lambda policy: policy.mean[:, :1])
    p = one(torch.randn(3, 100))
    assert p.std.shape == (3, 1) and "1 output with a backward pass" in p.notes[0]


def test_a_fit_without_tqdm_prints_how_long_it_will_take(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "tqdm" else find(name)
    )
    model, x = network(), torch.randn(60, 3)
    hs.Uncertain(model, noise=0.01).fit(held_out(model, x))
    printed = capsys.readouterr().err
    assert "held-out inputs: done" in printed and "held-out inputs: 0 of 1" in printed


class Spiking(nn.Module):
    """Leaky integrators with a threshold: no gradient, and no layer with weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        voltage, spikes = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            voltage = 0.9 * voltage + step
            fired = (voltage > 1).to(x.dtype)
            voltage, spikes = voltage - fired, spikes + fired
        return spikes[:, None]


def test_a_network_without_layers_gets_a_residual_variance_and_the_reason():
    model, x = Spiking().eval(), torch.rand(80, 20)
    sure = hs.Uncertain(model, noise=hs.noise.std(0.1))
    fit = sure.fit(held_out(model, x), show_progress=False)
    p = sure(torch.cat([x[:5], 40 * x[:5]]))
    assert "posterior" in fit.notes[0] and bool((p.std > 0).all())
    assert bool((p.novelty[5:] > 3).all())


@pytest.mark.parametrize("far", [10.0, 100.0])
def test_no_class_is_certain_far_from_known_inputs(far):
    torch.manual_seed(0)
    layers = nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4)
    model, x = nn.Sequential(*layers).eval(), torch.randn(200, 3)
    labels = (model(x) + 0.3 * torch.randn(200, 4)).argmax(1)
    sure = hs.Uncertain(model, task="classification")
    sure.fit([(x, labels)], show_progress=False)
    p = sure(far * torch.randn(20, 3))
    assert bool((p.mutual_information > 0).all()) and bool((p.std.amax(1) > 0.01).all())
