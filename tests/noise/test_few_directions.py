"""Noise of few independent directions: points average little, so the default samples."""

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.noise import dimensions_of

WIDTH = 100
STILL = torch.zeros(3, WIDTH)
OFFSET = hs.noise.common_mode(0.3) + hs.noise.std(0.03)
WALK = hs.noise.random_walk(0.05)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    hidden = nn.Linear(WIDTH, 64), nn.Tanh() if seed % 2 else nn.ReLU(), nn.Linear(64, 64)
    return nn.Sequential(*hidden, nn.ReLU(), nn.Linear(64, 2)).eval()


@pytest.mark.parametrize(
    ("noise", "directions"),
    [
        (hs.noise.std(0.1), WIDTH),
        (hs.noise.common_mode(0.1), 1),
        (WALK, 1.5),  # (pi^2 / 8)^2 / (pi^4 / 96) of a long one
        (hs.noise.common_mode(0.1) + hs.noise.std(0.1), 4),  # half of the variance is shared
        (hs.noise.correlated(factor=torch.eye(WIDTH)[:, :3]), 3),
    ],
)
def test_directions_of_a_noise(noise, directions):
    assert dimensions_of(noise, STILL) == pytest.approx(directions, rel=0.2)
    assert dimensions_of({"a": noise}, {"a": STILL, "b": STILL}) == pytest.approx(
        directions, rel=0.2
    )


@pytest.mark.parametrize("noise", [OFFSET, WALK])
def test_the_default_is_right_for_noise_of_few_directions(noise):
    for seed in range(12):
        net, x = network(seed), torch.randn(4, WIDTH)
        p = hs.Uncertain(net, noise, seed=seed)(x)
        draws = noise.sample(x.repeat(2000, 1), torch.Generator().manual_seed(seed))
        with torch.no_grad():
            true = net(draws).unflatten(0, (2000, 4)).std(0)
        assert p.method == "noise_sampling" and "directions" in p.notes[0]
        assert bool(((p.std / true).log().abs() < 0.25).all())


def test_few_points_that_were_asked_for_have_a_note():
    net, x = network(0), torch.randn(4, WIDTH)
    (note,) = hs.Uncertain(net, WALK, "gradients")(x).notes
    assert "1.6 independent directions" in note
    for options in ({"samples": 64}, {"tolerance": 0.1}):
        notes = hs.Uncertain(net, WALK, "gradients", **options)(x).notes
        assert not any("directions" in note for note in notes)
    assert hs.Uncertain(net, 0.01, "gradients")(x).notes == ()


def test_a_large_network_is_sampled_too():
    net = nn.Sequential(nn.Linear(WIDTH, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.Linear(512, 1))
    p = hs.Uncertain(net.eval(), WALK)(torch.randn(2, WIDTH))
    assert p.method == "noise_sampling" and "about 1.6 directions" in p.notes[0]
