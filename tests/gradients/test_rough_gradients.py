"""Logarithms of spectra: where noise fills empty bins, gradients are too rough to be relied on."""

import pytest
import torch
from torch import nn

import howsure as hs

STD = 1e-3


class LogSpectrum(nn.Module):
    """Scores of a sound from the logarithm of its spectrum, as speech networks give them."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.floor = floor
        self.layers = nn.Sequential(nn.Conv1d(65, 16, 3), nn.ReLU(), nn.Conv1d(16, 8, 3), nn.ReLU())
        self.last = nn.Linear(8, 2)
        self.register_buffer("window", torch.hann_window(128))

    def forward(self, x):
        found = torch.stft(x, 128, 64, window=self.window, return_complex=True)
        power = (found.real.square() + found.imag.square()).clamp(min=self.floor)
        return self.last(self.layers(power.log10() / 5).mean(-1))


def sound() -> torch.Tensor:
    """Tones over a faint drift and hiss."""
    generator = torch.Generator().manual_seed(1)
    times = torch.arange(1024) / 8000
    tones = torch.stack([0.1 * torch.sin(6.283 * f * times) for f in (300.0, 1000.0)])
    drift = 0.002 * torch.randn(2, 1024, generator=generator).cumsum(1)
    return tones + drift + 0.005 * torch.randn(2, 1024, generator=generator)


@pytest.mark.parametrize(("floor", "is_rough"), [(1e-12, True), (1e-3, False)])
def test_gradients_are_used_only_where_they_tell_the_variance(floor, is_rough):
    net, x = LogSpectrum(floor).eval(), sound()
    p = hs.Uncertain(net, hs.noise.std(STD))(x)
    noise = STD * torch.randn(1000, 2, 1024, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        true = net((x + noise).flatten(0, 1)).unflatten(0, (1000, 2)).std(0)
    assert p.method == "gradients"  # which samples the rows where they do not
    assert any("inputs were sampled" in note for note in p.notes) == is_rough
    assert bool(((p.std - true).abs() < torch.maximum(0.2 * true, 2 * p.std_error)).all())
